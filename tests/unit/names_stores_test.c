/*
 * Every change of the name table, ended by SIGKILL after each of its stores: afterwards each name has the
 * value from before or from after the change, and the invariants hold (docs/TESTING.md). Of changes with many
 * stores a sample is taken, which PBEAM_FAULT_SEED repeats; with PBEAM_FAULT_ROUNDS all are.
 */
#include <errno.h>
#include <netinet/in.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>

#include "tests/unit/names_facts_help.h"
#include "tests/unit/names_help.h"
#include "tests/unit/store_help.h"

/* No process has the numbers from REAL on. */
enum {
	FIRST = 5000000,
	SECOND,
	THIRD,
	MEMBER,
	REAL = 4194000,
	OTHER_REAL,
	STORES_EACH = 20,
	STORES_MAX = 4000,
	INODE = 4711
};

static unsigned seed;
static bool every;
static struct rpid keeper, other_keeper;
static struct name_job job, other_job;
static struct name_process process;
static struct name_socket sockets;
static struct name_address address;

static struct vpid v(int n)
{
	return (struct vpid){n};
}

static struct rpid r(int n)
{
	return (struct rpid){n};
}

/* ---- the changes, and what is there before ---- */

static int bind_first(struct names *names)
{
	return names_number_bind(names, v(FIRST), r(REAL), keeper);
}

static int bind_again(struct names *names)
{
	return names_number_bind(names, v(FIRST), r(OTHER_REAL), keeper);
}

/* The real number of one name is given to another one. */
static int bind_second(struct names *names)
{
	return names_number_bind(names, v(SECOND), r(REAL), keeper);
}

static int bind_to_itself(struct names *names)
{
	return names_number_bind(names, v(REAL), r(REAL), keeper);
}

static int give_born(struct names *names)
{
	struct vpid out;

	names->test_diverge = true;
	return names_number_born(names, r(OTHER_REAL), keeper, &out);
}

static int release_first(struct names *names)
{
	names_number_release(names, v(FIRST), r(REAL));
	return 0;
}

static int bind_id(struct names *names)
{
	return names_ipc_bind(names, NAMES_IPC_SHM, 1, 2, keeper);
}

static int bind_id_again(struct names *names)
{
	return names_ipc_bind(names, NAMES_IPC_SHM, 1, 3, keeper);
}

static int bind_other_id(struct names *names)
{
	return names_ipc_bind(names, NAMES_IPC_SHM, 4, 2, keeper);
}

static int release_id(struct names *names)
{
	names_ipc_release(names, NAMES_IPC_SHM, 1);
	return 0;
}

static int add_job(struct names *names)
{
	return names_job_add(names, &job, NULL);
}

static int add_other_job(struct names *names)
{
	return names_job_add(names, &other_job, NULL);
}

static int update_job(struct names *names)
{
	job.interval_ns++;
	return names_job_update(names, &job);
}

static int remove_job(struct names *names)
{
	names_job_remove(names, keeper);
	return 0;
}

static int add_process(struct names *names)
{
	return names_process_add(names, &process);
}

static int update_process(struct names *names)
{
	process.unknown_calls++;
	return names_process_update(names, &process);
}

static int mark_process(struct names *names)
{
	names_process_mark(names, process.vpid, true);
	return 0;
}

static int remove_process(struct names *names)
{
	names_process_remove(names, process.vpid, process.rpid);
	return 0;
}

static int set_socket(struct names *names)
{
	sockets.own.in.sin_port++;
	return names_socket_set(names, INODE, &sockets);
}

static int forget_socket(struct names *names)
{
	names_socket_forget(names, INODE);
	return 0;
}

static int set_address(struct names *names)
{
	address.real.in.sin_port++;
	return names_address_set(names, &address, NULL, 0);
}

static int remove_address(struct names *names)
{
	names_address_remove(names, &address);
	return 0;
}

static int place_first(struct names *names)
{
	return names_place_set(names, v(FIRST), "elsewhere");
}

/* All that a job has. */
static int add_all(struct names *names)
{
	int (*const all[])(struct names *) = {add_job, add_process, bind_first, bind_id, add_other_job};
	int done = 0;

	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]) && done == 0; i++)
		done = all[i](names);
	return done < 0 ? done : names_number_bind(names, v(THIRD), r(OTHER_REAL), other_keeper);
}

struct change {
	const char *name;
	int (*prepare)(struct names *names), (*make)(struct names *names);
};

static const struct change changes[] = {
	{"bind a number", NULL, bind_first},
	{"bind it to another real number", bind_first, bind_again},
	{"bind another name to its real number", bind_first, bind_second},
	{"bind a real number to itself", bind_first, bind_to_itself},
	{"choose a number", bind_first, give_born},
	{"release a number", bind_first, release_first},
	{"bind a number that was released", release_first, bind_again},
	{"bind an id", NULL, bind_id},
	{"bind it to another real id", bind_id, bind_id_again},
	{"bind another name to its real id", bind_id, bind_other_id},
	{"release an id", bind_id, release_id},
	{"add a job", NULL, add_job},
	{"update a job", add_job, update_job},
	{"remove a job with all that it has", add_all, remove_job},
	{"add a process", add_job, add_process},
	{"update a process", add_process, update_process},
	{"mark a process", add_process, mark_process},
	{"remove a process", add_process, remove_process},
	{"name a socket", NULL, set_socket},
	{"name a socket again", set_socket, set_socket},
	{"forget a socket", set_socket, forget_socket},
	{"set an address", NULL, set_address},
	{"set an address again", set_address, set_address},
	{"remove an address", set_address, remove_address},
	{"place a process", NULL, place_first},
};

/* ---- one change ---- */

/* Makes the change in a process that ends after `n` stores; true if it made the change before. */
static bool make_in_child(struct names *names, const struct change *change, unsigned long n)
{
	const pid_t pid = fork();
	int status;

	assert_true(pid >= 0);
	if (pid == 0) {
		int done;

		if (n)
			store_end_after(names->table, sizeof(*names->table), n);
		done = change->make(names);
		if (n)
			store_free();
		_exit(done < 0 ? 1 : 0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	if (WIFEXITED(status))
		assert_int_equal(WEXITSTATUS(status), 0);
	else
		assert_int_equal(WTERMSIG(status), SIGKILL);
	return WIFEXITED(status);
}

/* Before the repair: what supervisors read without the lock. */
static void check_readers(struct names *names, const struct facts *before, const struct facts *after,
			  const struct change *change, unsigned long n)
{
	for (uint64_t name = FIRST; name <= THIRD; name++) {
		const uint64_t found = (uint64_t)names_real(names, v((int)name)).n;
		const uint64_t first = facts_value(before, FACT_NUMBER, name);
		const uint64_t second = facts_value(after, FACT_NUMBER, name);

		if (found != (first ? first : name) && found != (second ? second : name))
			fail_msg("%s, ended after store %lu: %d is read as %d", change->name, n, (int)name,
				 (int)found);
	}
}

/* An address is told again by the host that knows it: a change may leave it out for a moment. */
static bool facts_may_miss(int kind)
{
	return kind == FACT_ADDRESS || kind == FACT_SOCKET;
}

/* NULL if each name has the value from before or after the change, else the one that has not. */
static const struct fact *facts_wrong(const struct facts *found, const struct facts *before,
				      const struct facts *after)
{
	const struct facts *const all[] = {found, before, after};

	for (size_t k = 0; k < 3; k++)
		for (size_t i = 0; i < all[k]->n; i++) {
			const struct fact *fact = &all[k]->v[i];
			const uint64_t value = facts_value(found, fact->kind, fact->key);
			const uint64_t first = facts_value(before, fact->kind, fact->key);
			const uint64_t second = facts_value(after, fact->kind, fact->key);

			if (value != first && value != second &&
			    (value || first == second || !facts_may_miss(fact->kind)))
				return fact;
		}
	return NULL;
}

static void check_facts(const struct facts *found, const struct facts *before, const struct facts *after,
			const struct change *change, unsigned long n)
{
	const struct fact *wrong = facts_wrong(found, before, after);

	if (!wrong)
		return;
	fail_msg("seed %u: %s, ended after store %lu: fact %d of %llu is %llx, was %llx, becomes %llx", seed,
		 change->name, n, wrong->kind, (unsigned long long)wrong->key,
		 (unsigned long long)facts_value(found, wrong->kind, wrong->key),
		 (unsigned long long)facts_value(before, wrong->kind, wrong->key),
		 (unsigned long long)facts_value(after, wrong->kind, wrong->key));
}

/* Each of the first stores, then further and further apart. */
static unsigned long next_step(unsigned long n)
{
	return n < STORES_EACH ? 1 : 1 + (unsigned long)rand() % (n / 2);
}

static unsigned long end_after_each_store(struct names *names, const struct change *change)
{
	static struct facts before, after, found;
	struct table *kept = malloc(sizeof(*kept));
	unsigned long tried = 0;
	bool whole = false;

	assert_non_null(kept);
	if (change->prepare == release_first)
		assert_int_equal(bind_first(names), 0);
	if (change->prepare == add_process)
		assert_int_equal(add_job(names), 0);
	if (change->prepare)
		assert_int_equal(change->prepare(names), 0);
	memcpy(kept, names->table, sizeof(*kept));
	facts_collect(names, &before);
	assert_true(make_in_child(names, change, 0));
	facts_collect(names, &after);
	for (unsigned long n = 1; !whole && n < STORES_MAX; n += every ? 1 : next_step(n)) {
		memcpy(names->table, kept, sizeof(*kept));
		whole = make_in_child(names, change, n);
		check_readers(names, &before, &after, change, n);
		facts_collect(names, &found);
		check_facts(&found, &before, &after, change, n);
		tried += !whole;
	}
	assert_true(whole);
	free(kept);
	return tried;
}

static void test_every_store(void **state)
{
	unsigned long stores = 0;
	pid_t second;

	(void)state;
	every = getenv("PBEAM_FAULT_ROUNDS") != NULL;
	seed = getenv("PBEAM_FAULT_SEED") ? (unsigned)atoi(getenv("PBEAM_FAULT_SEED")) : (unsigned)time(NULL);
	srand(seed);
	second = fork();
	if (second == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		for (;;)
			pause();
	}
	keeper.n = getpid();
	other_keeper.n = second;
	job = (struct name_job){.keeper = keeper, .root = v(FIRST), .name = "one"};
	other_job = (struct name_job){.keeper = other_keeper, .root = v(THIRD), .name = "other"};
	process = (struct name_process){
		.vpid = v(MEMBER), .rpid = keeper, .keeper = keeper, .state = NAME_STATE_RUNNING};
	address.protocol = IPPROTO_TCP;
	address.name.in.sin_family = address.real.in.sin_family = AF_INET;
	address.name.in.sin_port = 7;
	address.name.in.sin_addr.s_addr = address.real.in.sin_addr.s_addr = 0x0100000a;
	for (size_t i = 0; i < sizeof(changes) / sizeof(changes[0]); i++) {
		void *names = NULL;

		assert_int_equal(set_up(&names), 0);
		stores += end_after_each_store(names, &changes[i]);
		assert_int_equal(tear_down(&names), 0);
	}
	kill(second, SIGKILL);
	waitpid(second, NULL, 0);
	print_message("seed %u: %zu changes, ended after %lu stores\n", seed,
		      sizeof(changes) / sizeof(changes[0]), stores);
	assert_true(stores > 100);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_store)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
