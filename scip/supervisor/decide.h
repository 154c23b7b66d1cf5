/*
 * Decides what to do at a stop. A pure function from event to actions: it has no side effects, so that
 * every case is tested without a process. loop.c fills in the event and executes the actions in the order
 * of their bits.
 */
#ifndef SCIP_SUPERVISOR_DECIDE_H
#define SCIP_SUPERVISOR_DECIDE_H

#include "scip/tracee/process.h"

struct event {
	enum tracee_stop stop;
	int event;     /* PTRACE_EVENT_* of an event stop */
	bool newcomer; /* first stop of an unknown thread */
	bool leader;   /* of the thread that is the process's leader */
	bool freezing; /* a freeze is under way or done */
	bool held;     /* a husk: only the coordinator's requests resume it */
	bool diverged;
};

enum action {
	ACTION_GREET_THREAD = 1u << 0, /* the thread gets its virtual number */
	ACTION_ENTER_CALL = 1u << 2,   /* syscall_enter(), whose verdict says how it is resumed */
	ACTION_LEAVE_CALL = 1u << 3,   /* syscall_exit() */
	ACTION_TRANSLATE_SIGNAL = 1u << 4,
	ACTION_FIND_CHILD = 1u << 5, /* a child process is handed to another scip, a new thread is numbered */
	ACTION_NOTE_VFORK = 1u << 6, /* the thread waits in vfork from now on */
	ACTION_FORGET_PROGRAM = 1u << 7, /* another program was executed */
	ACTION_HOLD = 1u << 8,		 /* the freeze keeps the thread, if it can */
	ACTION_RESUME = 1u << 9,	 /* the thread is resumed if it was not kept */
	ACTION_DROP_THREAD = 1u << 10,
	ACTION_END = 1u << 11, /* the process is gone */
};

unsigned decide_actions(const struct event *event);

#endif
