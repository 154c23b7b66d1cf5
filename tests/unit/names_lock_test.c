/* The lock of the name table under a holder that is stopped. */
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>

#include "base/io.h"
#include "tests/unit/names_help.h"

static void test_stopped_holder(void **state)
{
	struct name_process process;
	struct err err = ERR_INIT;
	char text[64];
	uint64_t before;
	int ready[2], r;
	pid_t holder;

	assert_int_equal(pipe(ready), 0);
	holder = fork();
	if (holder == 0) {
		if (names_lock(*state) == 0 && write(ready[1], "1", 1) == 1)
			raise(SIGSTOP);
		names_unlock(*state);
		_exit(0);
	}
	assert_int_equal(read(ready[0], text, 1), 1);
	assert_int_equal(waitpid(holder, NULL, WUNTRACED), holder);
	names_limit_wait(*state, true);
	before = io_now_ns(CLOCK_MONOTONIC);
	r = names_process_count(*state, (struct rpid){1});
	assert_int_equal(r, -ETIMEDOUT);
	assert_in_range(io_now_ns(CLOCK_MONOTONIC) - before, 3000000000ull, 20000000000ull);
	assert_int_equal(names_explain(*state, r, &err), -ETIMEDOUT);
	snprintf(text, sizeof(text), "locked by process %d, which is stopped", (int)holder);
	assert_non_null(strstr(err.text, text));
	before = io_now_ns(CLOCK_MONOTONIC); /* the second wait is short */
	assert_int_equal(names_process_count(*state, (struct rpid){1}), -ETIMEDOUT);
	assert_in_range(io_now_ns(CLOCK_MONOTONIC) - before, 0, 2000000000ull);
	kill(holder, SIGCONT);
	assert_int_equal(waitpid(holder, NULL, 0), holder);
	assert_int_equal(names_process_count(*state, (struct rpid){1}), 0);
	assert_int_equal(names_process_get(*state, (struct vpid){1}, &process), -ENOENT);
	close(ready[0]);
	close(ready[1]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_stopped_holder, set_up, tear_down),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
