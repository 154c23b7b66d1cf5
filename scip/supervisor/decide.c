#include "scip/supervisor/decide.h"

#include <sys/ptrace.h>

/* The end of every stop: a husk stays; a freeze may keep the thread; else it is resumed. */
static unsigned decide_resume(const struct event *event, bool may_hold)
{
	if (event->held)
		return 0;
	return ACTION_RESUME | (event->freezing && may_hold ? ACTION_HOLD : 0);
}

/* At the events of fork and exec the call is half done: its result is not in the registers yet. A freeze
 * must not keep the thread there; the thread is interrupted again when it is resumed. */
static unsigned at_event(const struct event *event)
{
	switch (event->event) {
	case PTRACE_EVENT_VFORK:
		return ACTION_FIND_CHILD | ACTION_NOTE_VFORK | decide_resume(event, false);
	case PTRACE_EVENT_FORK:
	case PTRACE_EVENT_CLONE:
		return ACTION_FIND_CHILD | decide_resume(event, false);
	case PTRACE_EVENT_EXEC:
		return ACTION_FORGET_PROGRAM | decide_resume(event, false);
	default: /* PTRACE_EVENT_STOP: interrupted, continued after a group-stop, or its first stop */
		return decide_resume(event, true);
	}
}

static unsigned at_newcomer(const struct event *event)
{
	if (event->stop == TRACEE_EXITED)
		return ACTION_DROP_THREAD;
	return ACTION_GREET_THREAD | decide_resume(event, true);
}

unsigned decide_actions(const struct event *event)
{
	if (event->newcomer)
		return at_newcomer(event);
	switch (event->stop) {
	case TRACEE_SECCOMP_STOP:
		return ACTION_ENTER_CALL | decide_resume(event, true);
	case TRACEE_SYSCALL_EXIT_STOP:
		return ACTION_LEAVE_CALL | decide_resume(event, true);
	case TRACEE_SIGNAL_DELIVERY_STOP:
		return (event->diverged ? ACTION_TRANSLATE_SIGNAL : 0) | decide_resume(event, true);
	case TRACEE_GROUP_STOP:
		return decide_resume(event, true);
	case TRACEE_EVENT_STOP:
		return at_event(event);
	case TRACEE_EXITED:
		return event->leader ? ACTION_END : ACTION_DROP_THREAD;
	case TRACEE_RUNNING:
		break;
	}
	return 0;
}
