/* Texts and filters that a dump reads: the timer list of /proc, classic BPF programs. */
#include <errno.h>

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>

#include "proto/message.h"
#include "scip/dump/dump_parts.h"
#include "tests/unit/unit.h"

static void test_timers(void **state)
{
	static const char TEXT[] = "ID: 3\nsignal: 10/00007ffd0000beef\nnotify: signal/pid.2634\nClockID: 1\n"
				   "ID: 17\nsignal: 34/0\nnotify: signal/tid.77\nClockID: 0\n"
				   "ID: 18\nsignal: 0/0\nnotify: none/pid.1\nClockID: -6\n";
	struct err err = ERR_INIT;
	Pbeam__Process *out = message_new(&pbeam__process__descriptor);

	assert_int_equal(dump_parse_timers(TEXT, out, &err), 0);
	assert_int_equal(out->n_timers, 3);
	assert_int_equal(out->timers[0]->id, 3);
	assert_int_equal(out->timers[0]->signal, 10);
	assert_int_equal(out->timers[0]->sigev_value, 0x7ffd0000beef);
	assert_int_equal(out->timers[0]->notify, SIGEV_SIGNAL);
	assert_int_equal(out->timers[0]->clock, 1);
	assert_int_equal(out->timers[1]->notify, SIGEV_SIGNAL | SIGEV_THREAD_ID);
	assert_int_equal(out->timers[1]->notify_vtid, 77);
	assert_int_equal(out->timers[2]->notify, SIGEV_NONE);
	assert_int_equal(out->timers[2]->clock, -6);
	message_free(out);
}

static void test_bad_timers(void **state)
{
	static const char *const BAD[] = {"signal: 1/0\n", "ID: 1\nnotify: postman/pid.1\n", "ID: 1\nwhat\n"};

	for (size_t i = 0; i < sizeof(BAD) / sizeof(BAD[0]); i++) {
		struct err err = ERR_INIT;
		Pbeam__Process *out = message_new(&pbeam__process__descriptor);

		assert_int_equal(dump_parse_timers(BAD[i], out, &err), -EINVAL);
		message_free(out);
	}
}

static void test_filter(void **state)
{
	static const struct sock_filter FILTER[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 42, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | 1),
		BPF_STMT(BPF_ALU | BPF_AND | BPF_K, 0x40000000),
		BPF_STMT(BPF_ST, 3),
		BPF_STMT(BPF_LD | BPF_W | BPF_IMM, 0),
		BPF_STMT(BPF_LDX | BPF_W | BPF_MEM, 3),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_X, 0, 1, 0),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	const size_t n = sizeof(FILTER) / sizeof(FILTER[0]);
	struct seccomp_data data = {.nr = 42};

	assert_int_equal(dump_run_filter(FILTER, n, &data), SECCOMP_RET_ERRNO | 1);
	data.nr = 1;
	assert_int_equal(dump_run_filter(FILTER, n, &data), SECCOMP_RET_ALLOW);
	data.nr = 0x40000001;
	assert_int_equal(dump_run_filter(FILTER, n, &data), SECCOMP_RET_KILL_PROCESS);
	assert_int_equal(dump_run_filter(FILTER, 1, &data), SECCOMP_RET_KILL_PROCESS);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_timers), cmocka_unit_test(test_bad_timers),
					   cmocka_unit_test(test_filter)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
