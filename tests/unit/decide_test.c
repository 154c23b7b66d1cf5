/* The supervisor's decisions at every kind of stop, without any process. */

#include <signal.h>
#include <sys/ptrace.h>

#include "scip/supervisor/decide.h"
#include "tests/unit/unit.h"

#define GO ((unsigned)ACTION_RESUME)

static void calls(void **state)
{
	assert_int_equal(decide_actions(&(struct event){.stop = TRACEE_SECCOMP_STOP}),
			 ACTION_ENTER_CALL | GO);
	assert_int_equal(decide_actions(&(struct event){.stop = TRACEE_SYSCALL_EXIT_STOP}),
			 ACTION_LEAVE_CALL | GO);
}

static void signals(void **state)
{
	assert_int_equal(decide_actions(&(struct event){.stop = TRACEE_SIGNAL_DELIVERY_STOP}), GO);
	assert_int_equal(
		decide_actions(&(struct event){.stop = TRACEE_SIGNAL_DELIVERY_STOP, .diverged = true}),
		ACTION_TRANSLATE_SIGNAL | GO);
	assert_int_equal(decide_actions(&(struct event){.stop = TRACEE_GROUP_STOP}), GO);
}

static void births(void **state)
{
	struct event event = {.stop = TRACEE_EVENT_STOP, .event = PTRACE_EVENT_FORK};

	assert_int_equal(decide_actions(&event), ACTION_FIND_CHILD | GO);
	event.event = PTRACE_EVENT_CLONE;
	assert_int_equal(decide_actions(&event), ACTION_FIND_CHILD | GO);
	event.event = PTRACE_EVENT_VFORK;
	assert_int_equal(decide_actions(&event), ACTION_FIND_CHILD | ACTION_NOTE_VFORK | GO);
}

/* At these stops the call is half done: a freeze must not hold the thread there. */
static void events_are_not_held(void **state)
{
	static const int events[] = {PTRACE_EVENT_FORK, PTRACE_EVENT_VFORK, PTRACE_EVENT_CLONE,
				     PTRACE_EVENT_EXEC};

	for (unsigned i = 0; i < sizeof(events) / sizeof(events[0]); i++) {
		struct event event = {.stop = TRACEE_EVENT_STOP, .event = events[i], .freezing = true};

		assert_int_equal(decide_actions(&event) & (ACTION_HOLD | ACTION_RESUME), ACTION_RESUME);
	}
}

static void freezing(void **state)
{
	struct event event = {.stop = TRACEE_EVENT_STOP, .event = PTRACE_EVENT_STOP, .freezing = true};

	assert_int_equal(decide_actions(&event), ACTION_HOLD | GO);
	event.stop = TRACEE_SIGNAL_DELIVERY_STOP;
	assert_int_equal(decide_actions(&event), ACTION_HOLD | GO);
	event.stop = TRACEE_GROUP_STOP;
	assert_int_equal(decide_actions(&event), ACTION_HOLD | GO);
	event.stop = TRACEE_SYSCALL_EXIT_STOP;
	assert_int_equal(decide_actions(&event), ACTION_LEAVE_CALL | ACTION_HOLD | GO);
}

static void newcomers(void **state)
{
	struct event event = {.stop = TRACEE_EVENT_STOP, .event = PTRACE_EVENT_STOP, .newcomer = true};

	assert_int_equal(decide_actions(&event), ACTION_GREET_THREAD | GO);
	event.freezing = true;
	assert_int_equal(decide_actions(&event), ACTION_GREET_THREAD | ACTION_HOLD | GO);
	event.stop = TRACEE_EXITED;
	assert_int_equal(decide_actions(&event), ACTION_DROP_THREAD);
}

static void husks_stay(void **state)
{
	static const enum tracee_stop stops[] = {TRACEE_SECCOMP_STOP, TRACEE_SYSCALL_EXIT_STOP,
						 TRACEE_SIGNAL_DELIVERY_STOP, TRACEE_GROUP_STOP,
						 TRACEE_EVENT_STOP};

	for (unsigned i = 0; i < sizeof(stops) / sizeof(stops[0]); i++)
		assert_int_equal(decide_actions(&(struct event){.stop = stops[i], .held = true}) &
					 (ACTION_RESUME | ACTION_HOLD),
				 0);
}

static void ends(void **state)
{
	assert_int_equal(decide_actions(&(struct event){.stop = TRACEE_EXITED}), ACTION_DROP_THREAD);
	assert_int_equal(decide_actions(&(struct event){.stop = TRACEE_EXITED, .leader = true}), ACTION_END);
	assert_int_equal(decide_actions(&(struct event){.stop = TRACEE_EXITED, .leader = true, .held = true}),
			 ACTION_END);
	assert_int_equal(decide_actions(&(struct event){.stop = TRACEE_RUNNING}), 0);
}

static void exec(void **state)
{
	assert_int_equal(
		decide_actions(&(struct event){.stop = TRACEE_EVENT_STOP, .event = PTRACE_EVENT_EXEC}),
		ACTION_FORGET_PROGRAM | GO);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(calls),      cmocka_unit_test(signals),
		cmocka_unit_test(births),     cmocka_unit_test(freezing),
		cmocka_unit_test(newcomers),  cmocka_unit_test(events_are_not_held),
		cmocka_unit_test(husks_stay), cmocka_unit_test(ends),
		cmocka_unit_test(exec),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
