/*
 * A stopped tracee on loan for scip's calls: remote_enter() saves its state, remote_frame_call() and
 * remote_frame_code() run, remote_leave() restores everything. For remote.c and inject.c only.
 */
#ifndef SCIP_TRACEE_REMOTE_FRAME_H
#define SCIP_TRACEE_REMOTE_FRAME_H

#include <signal.h>

#include "scip/tracee/process.h"

struct remote_frame {
	struct tracee *tracee;
	struct user_regs_struct saved;
	uint64_t mask;	       /* of the tracee */
	siginfo_t siginfo;     /* of the signal of a signal-delivery stop */
	enum tracee_stop from; /* the stop that it was in */
	enum { REMOTE_AT_START, REMOTE_AT_EXIT, REMOTE_AT_SIGNAL } at;
	bool skip_exit;	   /* the exit stop of the call skipped at the seccomp stop is still to come */
	bool executed;	   /* an execve by scip succeeded: nothing to restore */
	bool group_stop;   /* a group-stop happened meanwhile */
	bool trapped;	   /* an event-stop happened that a caller may wait for */
	bool interrupt;	   /* interrupt the call itself, before it can wait */
	pid_t child;	   /* of the last fork or clone */
	struct taddr insn; /* the `syscall` instruction that was found last, 0 none */

	/* A fault of the tracee whose signal was on its way at remote_enter(); si_signo 0: none. */
	siginfo_t fault;

	siginfo_t resent[8];
	unsigned nresent;
};

/* On failure the tracee is unchanged. */
must_check int remote_enter(struct remote_frame *frame, struct tracee *tracee, struct err *err);
must_check int remote_frame_call(struct remote_frame *frame, int64_t *ret, struct err *err, int64_t nr,
				 const uint64_t args[6]);
/* The same for a call that cannot wait or be interrupted. Where process->trap_unignored says so it is made by
 * a single step, with one stop instead of two, and without the one that remote_leave() needs after an exit
 * stop (a step ends inside get_signal()). The kernel forces the SIGTRAP of a step, as that of int3, which
 * resets the action of a process that ignores it. */
must_check int remote_frame_quick_call(struct remote_frame *frame, int64_t *ret, struct err *err, int64_t nr,
				       const uint64_t args[6]);
/* Runs injected code until its int3. [code, code_end) distinguishes its trap from a signal. */
must_check int remote_frame_code(struct remote_frame *frame, struct taddr code, struct taddr code_end,
				 struct taddr stack, struct taddr batch, struct err *err);
must_check int remote_leave(struct remote_frame *frame, struct err *err);
/* remote_leave() after a step that returned `code`; returns the first error. -ESRCH: the tracee is dying. */
must_check int remote_leave_after(struct remote_frame *frame, int code, struct err *err);

#endif
