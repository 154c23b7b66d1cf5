/*
 * The name table against a model, with actors that are stopped, killed and started again. docs/TESTING.md has
 * the invariants.
 *
 * Each actor is a process that makes random changes in its own range of names, and keeps a model of it in
 * shared memory: before a change it notes what the change is, after it that it is done. So at each moment
 * every name has the value of the model, and the one that an actor changes at that moment its old or its new
 * value. The test stops and kills actors, at random moments or after a random number of stores, and compares.
 *
 * PBEAM_FAULT_ROUNDS gives the number of stops and kills, PBEAM_FAULT_SEED the seed.
 */
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>

#include "base/io.h"
#include "tests/unit/names_facts_help.h"
#include "tests/unit/names_help.h"
#include "tests/unit/store_help.h"

/* No process has the numbers from REAL on. */
enum {
	ROUNDS = 150,
	STORES = 150,
	ACTORS = 4,
	NAMES = 24,
	IDS = 16,
	OWN = 5000000,
	REAL = 4194000,
	STEP = 1000
};

enum kind { KIND_NUMBER, KIND_ID, KIND_JOB, KIND_PROCESS, KINDS };

/* Values: 0 nothing; of numbers, negative: released, which may still be translated. */
struct change {
	enum kind kind;
	int index;
	int32_t before, after;
};

struct actor {
	pid_t pid;
	_Atomic int changing; /* `change` is in progress */
	struct change change;
	int32_t numbers[NAMES], ids[IDS], job, process;
	_Atomic unsigned long done;
	_Atomic unsigned stores; /* it is to end after so many; 0: not yet */
};

static struct actor *actors;
static uint64_t seed;

static uint32_t random_below(uint64_t *state, uint32_t n)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return (uint32_t)(*state >> 33) % n;
}

/* ---- actors ---- */

static int32_t *model_of(struct actor *actor, enum kind kind, int index)
{
	switch (kind) {
	case KIND_NUMBER:
		return &actor->numbers[index];
	case KIND_ID:
		return &actor->ids[index];
	case KIND_JOB:
		return &actor->job;
	case KIND_PROCESS:
	case KINDS:
		break;
	}
	return &actor->process;
}

static struct change choose(struct actor *actor, int self, uint64_t *state)
{
	struct change change = {.kind = (enum kind)random_below(state, KINDS)};
	const uint32_t any = random_below(state, 7);

	change.index = (int)random_below(state, change.kind == KIND_NUMBER ? NAMES : IDS);
	change.before = *model_of(actor, change.kind, change.index);
	/* The job owns the names: without it they would be gone too. */
	if (change.before <= 0 || change.kind == KIND_JOB || random_below(state, 3) == 0)
		change.after = REAL + self * STEP + change.index * 8 + 1 + (int)any;
	else if (change.kind == KIND_NUMBER)
		change.after = -change.before;
	return change;
}

static int apply_number(struct names *names, int32_t name, const struct change *change)
{
	if (change->before > 0)
		names_number_release(names, (struct vpid){name}, (struct rpid){change->before});
	return change->after <= 0 ? 0
				  : names_number_bind(names, (struct vpid){name},
						      (struct rpid){change->after}, (struct rpid){getpid()});
}

static int apply_id(struct names *names, int32_t name, const struct change *change)
{
	if (change->before)
		names_ipc_release(names, NAMES_IPC_SEM, name);
	return !change->after
		       ? 0
		       : names_ipc_bind(names, NAMES_IPC_SEM, name, change->after, (struct rpid){getpid()});
}

static int apply_job(struct names *names, const struct change *change)
{
	struct name_job job = {
		.keeper = {getpid()}, .root = {change->after}, .start_ns = (uint64_t)change->after};

	snprintf(job.name, sizeof(job.name), "job %d", change->after);
	return change->before ? names_job_update(names, &job) : names_job_add(names, &job, NULL);
}

static int apply_process(struct names *names, int32_t name, const struct change *change)
{
	struct name_process process = {.vpid = {name},
				       .rpid = {getpid()},
				       .keeper = {getpid()},
				       .parent = {change->after},
				       .start_ns = (uint64_t)change->after,
				       .state = NAME_STATE_RUNNING,
				       .diverged = true};

	if (!change->after)
		names_process_remove(names, process.vpid, process.rpid);
	return !change->after	? 0
	       : change->before ? names_process_update(names, &process)
				: names_process_add(names, &process);
}

static int apply(struct names *names, int self, const struct change *change)
{
	const int32_t name = OWN + self * STEP + change->index;

	switch (change->kind) {
	case KIND_NUMBER:
		return apply_number(names, name, change);
	case KIND_ID:
		return apply_id(names, name, change);
	case KIND_JOB:
		return apply_job(names, change);
	case KIND_PROCESS:
	case KINDS:
		break;
	}
	return apply_process(names, OWN + self * STEP + STEP - 1, change);
}

static _Noreturn void act(int self, uint64_t state)
{
	struct actor *actor = &actors[self];
	struct change first = {.kind = KIND_JOB, .after = REAL + self * STEP + 1};
	struct names *names;
	int r;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (names_open(&names, NULL) < 0)
		_exit(1);
	for (bool begun = false;; begun = true) {
		actor->change = begun ? choose(actor, self, &state) : first;
		atomic_store(&actor->changing, 1);
		if (actor->stores) {
			store_end_after(names->table, sizeof(*names->table), actor->stores);
			actor->stores = 0;
		}
		r = apply(names, self, &actor->change);
		if (r < 0)
			_exit(-r);
		*model_of(actor, actor->change.kind, actor->change.index) = actor->change.after;
		atomic_store(&actor->changing, 0);
		atomic_fetch_add(&actor->done, 1);
	}
}

static void start(int self, uint64_t *state)
{
	const uint64_t its = *state + (uint64_t)self * 7919 + 1;
	pid_t pid;

	memset(&actors[self].change, 0, sizeof(actors[self].change));
	pid = fork();
	random_below(state, 2);
	assert_true(pid >= 0);
	if (pid == 0)
		act(self, its);
	actors[self].pid = pid; /* not in the child, which shares the memory */
}

/* ---- the comparison ---- */

static bool agrees(int32_t model, int32_t found)
{
	return model >= 0 ? found == model : found == -model || found == 0;
}

static void check_value(struct actor *actor, enum kind kind, int index, int32_t found)
{
	const struct change *change = &actor->change;
	const int32_t model = *model_of(actor, kind, index);

	if (agrees(model, found))
		return;
	if (!atomic_load(&actor->changing) || change->kind != kind ||
	    (change->index != index && kind != KIND_JOB && kind != KIND_PROCESS))
		fail_msg("seed %llu: kind %d, name %d: %d instead of %d", (unsigned long long)seed, (int)kind,
			 index, found, model);
	/* A change from one value to another has a moment without any. */
	if (!agrees(change->after, found) && found != 0)
		fail_msg("seed %llu: kind %d, name %d: %d while %d becomes %d", (unsigned long long)seed,
			 (int)kind, index, found, change->before, change->after);
}

/* What is read without the lock; with `repaired` nobody has died with it since it was last taken. */
static void check_maps(struct names *names, int self, bool repaired)
{
	for (int i = 0; i < NAMES; i++) {
		const int32_t name = OWN + self * STEP + i, real = names_real(names, (struct vpid){name}).n;
		const bool bound = real != NAMES_NOBODY && real != name;

		check_value(&actors[self], KIND_NUMBER, i, bound ? real : 0);
		if (bound && repaired)
			assert_int_equal(names_virtual(names, (struct rpid){real}).n, name);
	}
	for (int i = 0; i < IDS; i++) {
		const int32_t name = OWN + self * STEP + i, real = names_ipc_real(names, NAMES_IPC_SEM, name);
		const bool bound = real >= 0 && real != name;

		check_value(&actors[self], KIND_ID, i, bound ? real : 0);
		if (bound && repaired)
			assert_int_equal(names_ipc_virtual(names, NAMES_IPC_SEM, real), name);
	}
}

/* Takes the lock. */
static void check_entries(struct names *names, int self)
{
	struct actor *actor = &actors[self];
	struct name_process process = {.parent = {0}};
	struct name_job job = {.root = {0}};
	char name[NAME_TEXT_MAX];

	if (names_job_get(names, (struct rpid){actor->pid}, &job) == 0) {
		snprintf(name, sizeof(name), "job %d", job.root.n);
		assert_string_equal(job.name, name);
		assert_int_equal(job.start_ns, (uint64_t)job.root.n);
	}
	check_value(actor, KIND_JOB, 0, job.root.n);
	if (names_process_get(names, (struct vpid){OWN + self * STEP + STEP - 1}, &process) == 0) {
		assert_int_equal(process.rpid.n, actor->pid);
		assert_int_equal(process.start_ns, (uint64_t)process.parent.n);
	}
	check_value(actor, KIND_PROCESS, 0, process.parent.n);
}

/* ---- what happens to actors ---- */

/* A stopped actor may have the lock. It keeps it, and what it changes then is as it was or will be. */
static void stop_and_continue(struct names *names, int self)
{
	struct actor *actor = &actors[self];
	const unsigned long done = atomic_load(&actor->done);
	const uint64_t until = io_now_ns(CLOCK_MONOTONIC) + 20000000000ull;
	int status;

	kill(actor->pid, SIGSTOP);
	assert_int_equal(waitpid(actor->pid, &status, WUNTRACED), actor->pid);
	if (!WIFSTOPPED(status))
		fail_msg("seed %llu: an actor ended with %d", (unsigned long long)seed, WEXITSTATUS(status));
	check_maps(names, self, false);
	kill(actor->pid, SIGCONT);
	while (atomic_load(&actor->done) == done && io_now_ns(CLOCK_MONOTONIC) < until)
		nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
	assert_int_not_equal(atomic_load(&actor->done), done);
}

/* Nobody looks for dead keepers meanwhile, so what the actor has registered is still there. It ends at once,
 * or after some more stores. */
static void kill_and_forget(struct names *names, int self, unsigned stores)
{
	struct actor *actor = &actors[self];
	int status;

	if (stores)
		actor->stores = stores;
	else
		kill(actor->pid, SIGKILL);
	assert_int_equal(waitpid(actor->pid, &status, 0), actor->pid);
	if (!WIFSIGNALED(status))
		fail_msg("seed %llu: an actor ended with %d", (unsigned long long)seed, WEXITSTATUS(status));
	check_entries(names, self);
	check_maps(names, self, true);
	/* The names of a dead keeper go with its job. If it was killed before it had one there are none. */
	names_job_remove(names, (struct rpid){actor->pid});
	atomic_store(&actor->changing, 0);
	memset(actor->numbers, 0, sizeof(actor->numbers));
	memset(actor->ids, 0, sizeof(actor->ids));
	actor->job = actor->process = 0;
	check_entries(names, self);
	check_maps(names, self, true);
}

/* One round: an actor is stopped, or ends and is followed by another one. */
static void disturb(struct names *names, uint64_t *random, unsigned long *killed)
{
	const int self = (int)random_below(random, ACTORS);
	const uint32_t how = random_below(random, 3);

	nanosleep(&(struct timespec){.tv_nsec = 1000 + random_below(random, 3000000)}, NULL);
	if (how == 0) {
		stop_and_continue(names, self);
		return;
	}
	kill_and_forget(names, self, how == 1 ? 0 : 1 + random_below(random, STORES));
	start(self, random);
	++*killed;
}

static void test_model(void **state)
{
	static struct facts left;
	const char *longer = getenv("PBEAM_FAULT_ROUNDS"), *given = getenv("PBEAM_FAULT_SEED");
	const unsigned long rounds = longer ? strtoul(longer, NULL, 10) : ROUNDS;
	uint64_t random = seed = (given ? strtoull(given, NULL, 10) : io_now_ns(CLOCK_REALTIME)) | 1;
	unsigned long killed = 0, done = 0;
	struct names *names = *state;

	print_message("seed %llu\n", (unsigned long long)seed);
	alarm(100 + (unsigned)rounds / 10);
	actors = mmap(NULL, sizeof(*actors) * ACTORS, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
		      0);
	assert_true(actors != MAP_FAILED);
	for (int i = 0; i < ACTORS; i++)
		start(i, &random);
	for (unsigned long i = 0; i < rounds; i++)
		disturb(names, &random, &killed);
	for (int i = 0; i < ACTORS; i++) {
		kill_and_forget(names, i, 0);
		done += atomic_load(&actors[i].done);
	}
	facts_collect(names, &left);
	assert_int_equal(left.n, 0);
	print_message("%lu actors killed in %lu rounds, %lu changes, %u repairs\n", killed, rounds, done,
		      names->table->repairs);
	munmap(actors, sizeof(*actors) * ACTORS);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_model, set_up, tear_down),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
