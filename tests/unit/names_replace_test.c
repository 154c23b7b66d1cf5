/* The numbers of a rollback: set aside, bound again, given back or forgotten. */
#include <signal.h>
#include <string.h>
#include <sys/wait.h>

#include "namespace/record.h"
#include "namespace/table.h"
#include "tests/unit/names_help.h"

enum { DIVERGED = 5000000, THREAD = 5000001, HELPER = 5000002 };

static pid_t sleeper(void)
{
	pid_t pid = fork();

	if (pid == 0) {
		for (;;)
			pause();
	}
	return pid;
}

static void end(pid_t pid)
{
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
}

/* Two old processes, one of them diverged with a diverged thread number, and two new ones. */
struct world {
	struct names *names;
	struct rpid keeper;
	pid_t plain, diverged, new_plain, new_diverged;
};

static void add(struct world *w, int vpid, pid_t rpid)
{
	struct name_process entry = {.vpid = {vpid},
				     .rpid = {rpid},
				     .keeper = w->keeper,
				     .scip = {getpid()},
				     .state = NAME_STATE_FROZEN};

	assert_int_equal(names_number_bind(w->names, entry.vpid, entry.rpid, w->keeper), 0);
	assert_int_equal(names_process_add(w->names, &entry), 0);
}

static void make_old(struct world *w, struct names *names)
{
	struct name_job job = {.keeper = {getpid()}, .name = "replaced"};
	struct err err = ERR_INIT;
	static const uint64_t filter[1];

	*w = (struct world){.names = names, .keeper = job.keeper};
	w->plain = sleeper();
	w->diverged = sleeper();
	w->new_plain = sleeper();
	w->new_diverged = sleeper();
	assert_int_equal(names_job_add(names, &job, &err), 0);
	add(w, w->plain, w->plain);
	add(w, DIVERGED, w->diverged);
	assert_int_equal(names_number_bind(names, (struct vpid){THREAD}, (struct rpid){w->diverged + 100000},
					   w->keeper),
			 0);
	assert_int_equal(record_filter_add(w->keeper, (struct vpid){DIVERGED}, filter, sizeof(filter)), 0);
}

static void begin(struct world *w)
{
	const struct name_number numbers[] = {{{w->plain}, {w->plain}}, {{DIVERGED}, {w->diverged}}};

	assert_int_equal(record_filter_set_aside(w->keeper, (struct vpid){w->plain}), 0);
	assert_int_equal(record_filter_set_aside(w->keeper, (struct vpid){DIVERGED}), 0);
	assert_int_equal(names_replace_begin(w->names, w->keeper, numbers, 2, true), 0);
	add(w, w->plain, w->new_plain);
	add(w, DIVERGED, w->new_diverged);
	assert_int_equal(names_number_bind(w->names, (struct vpid){HELPER}, (struct rpid){w->plain + 100000},
					   w->keeper),
			 0);
}

static int real(struct world *w, int vpid)
{
	return names_real(w->names, (struct vpid){vpid}).n;
}

static bool has_filter(struct world *w, int vpid)
{
	void *filter = NULL;
	size_t bytes;
	int r = record_filter_get(w->keeper, (struct vpid){vpid}, 0, &filter, &bytes);

	free(filter);
	return r == 1;
}

static void check_snapshot(struct world *w, pid_t plain, pid_t diverged, bool aside)
{
	struct name_process *list;
	int n = names_snapshot(w->names, w->keeper, &list);

	assert_int_equal(n, 2);
	for (int i = 0; i < n; i++) {
		assert_int_equal(list[i].rpid.n, list[i].vpid.n == w->plain ? plain : diverged);
		assert_true(list[i].vpid.n == w->plain || list[i].vpid.n == DIVERGED);
		assert_int_equal(list[i].aside, aside);
	}
	free(list);
}

static void end_world(struct world *w)
{
	end(w->plain);
	end(w->diverged);
	end(w->new_plain);
	end(w->new_diverged);
	names_job_remove(w->names, w->keeper);
	assert_int_equal(w->names->table->nnumbers, 0);
	assert_int_equal(w->names->table->nprocesses, 0);
}

/* While both exist each is found by its two numbers, and the new ones by the virtual number alone. */
static void check_both(struct world *w)
{
	struct name_process entry;

	assert_int_equal(real(w, w->plain), w->new_plain);
	assert_int_equal(real(w, DIVERGED), w->new_diverged);
	assert_int_equal(names_virtual(w->names, (struct rpid){w->diverged}).n, w->diverged);
	assert_int_equal(names_virtual(w->names, (struct rpid){w->plain}).n, 0);
	assert_int_equal(names_process_get(w->names, (struct vpid){DIVERGED}, &entry), 0);
	assert_int_equal(entry.rpid.n, w->new_diverged);
	assert_int_equal(
		names_process_get_real(w->names, (struct vpid){DIVERGED}, (struct rpid){w->diverged}, &entry),
		0);
	assert_int_equal(entry.vpid.n, DIVERGED);
	assert_true(entry.aside);
	entry.state = NAME_STATE_DEAD;
	assert_int_equal(names_process_update(w->names, &entry), 0);
	assert_int_equal(names_process_find_real(w->names, (struct rpid){w->diverged}, &entry), 0);
	assert_int_equal(entry.state, NAME_STATE_DEAD);
	check_snapshot(w, w->plain, w->diverged, true);
}

static void test_given_back(void **state)
{
	struct world w;

	make_old(&w, *state);
	begin(&w);
	check_both(&w);
	assert_int_equal(real(&w, THREAD), THREAD);
	assert_false(has_filter(&w, DIVERGED));
	names_replace_end(w.names, w.keeper, false);
	assert_int_equal(real(&w, w.plain), w.plain);
	assert_int_equal(real(&w, DIVERGED), w.diverged);
	assert_int_equal(real(&w, THREAD), w.diverged + 100000);
	assert_int_equal(real(&w, HELPER), HELPER);
	assert_int_equal(names_virtual(w.names, (struct rpid){w.new_plain}).n, w.new_plain);
	check_snapshot(&w, w.plain, w.diverged, false);
	assert_true(has_filter(&w, DIVERGED));
	names_replace_end(w.names, w.keeper, true); /* no effect */
	check_snapshot(&w, w.plain, w.diverged, false);
	end_world(&w);
}

static void test_committed(void **state)
{
	struct world w;

	make_old(&w, *state);
	begin(&w);
	check_both(&w);
	names_replace_end(w.names, w.keeper, true);
	assert_int_equal(real(&w, w.plain), w.new_plain);
	assert_int_equal(real(&w, DIVERGED), w.new_diverged);
	assert_int_equal(real(&w, THREAD), THREAD);
	assert_int_equal(real(&w, HELPER), w.plain + 100000);
	assert_false(has_filter(&w, DIVERGED));
	check_snapshot(&w, w.new_plain, w.new_diverged, false);
	end_world(&w);
}

/* The writer died: what is rebuilt from entries and forward map can still be given back. */
static void test_repaired(void **state)
{
	struct world w;

	make_old(&w, *state);
	begin(&w);
	table_repair(w.names->table);
	check_both(&w);
	names_replace_end(w.names, w.keeper, false);
	table_repair(w.names->table);
	assert_int_equal(real(&w, w.plain), w.plain);
	assert_int_equal(real(&w, DIVERGED), w.diverged);
	check_snapshot(&w, w.plain, w.diverged, false);
	end_world(&w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_given_back, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_committed, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_repaired, set_up, tear_down),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
