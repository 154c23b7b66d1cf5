/*
 * Waits for tracees, classifies their stops, interrupts and resumes them. ptrace(2), "Stopped states".
 */
#ifndef SCIP_TRACEE_STOPS_H
#define SCIP_TRACEE_STOPS_H

#include "scip/tracee/process.h"

/* The meaning of a wait status by itself. */
struct stops_class {
	enum tracee_stop stop;
	int signal; /* of a signal-delivery or group stop */
	int event;  /* PTRACE_EVENT_* of an event stop */
};
struct stops_class stops_classify(int status);

/* PTRACE_O_* that every tracee is seized with: EXITKILL, TRACECLONE, TRACEFORK, TRACEVFORK, TRACEEXEC,
 * TRACESECCOMP, TRACESYSGOOD, TRACEEXIT not. */
unsigned stops_options(void);

/* For stops_wait(): a signal ends the wait too (knock.h). */
enum { STOPS_OR_KNOCK = 1 << 16 }; /* not a flag of waitpid() */
/* Takes one wait status for a thread: `pid` as for waitpid (-1 any), `flags` WNOHANG, STOPS_OR_KNOCK or 0;
 * __WALL is added.
 * Updates the tracee (adding it when it is new) and returns 1 with *out, 0 with WNOHANG when there is none,
 * -ECHILD when no tracee is left, -EINTR. An exited thread is returned with stop TRACEE_EXITED and removed by
 * the caller.
 *
 * A thread that is new is returned with vtid 0. It may come before or after its parent's PTRACE_EVENT_CLONE.
 * A process that a tracee has forked is not returned: its first stop is kept for stops_wait_child().
 * PTRACE_EVENT_EXEC comes under the leader's number whoever executed: the leader's tracee then carries on the
 * call of the thread that did, and all other tracees are marked TRACEE_EXITED without a status of their own:
 * the caller removes them. syscall_insn and scratch are forgotten;
 * inject_forget() is the caller's. */
must_check int stops_wait(struct process *process, pid_t pid, int flags, struct tracee **out, int *status);

/* Waits for the first stop of a child process that a tracee has just forked (attached through
 * PTRACE_O_TRACEFORK and its like; the number is the event's message), unless stops_wait() has taken it
 * already. 0: it is in an event-stop before its first instruction. -ESRCH: it has been killed, *status is
 * its wait status. */
must_check int stops_wait_child(struct process *process, pid_t child, int *status);
/* Takes a forked child whose parent was killed before it could report the fork, stopped before its first
 * instruction; 0 if there is none. Called when the process has ended. */
pid_t stops_take_orphan(struct process *process);

enum stops_resume { STOPS_CONT, STOPS_SYSCALL };
/* Resumes a stopped tracee according to its stop: signal-delivery with its signal, group-stop with
 * PTRACE_LISTEN, all else with `how`. While the process is freezing it is interrupted again. -ESRCH: it is
 * gone. */
must_check int stops_resume(struct tracee *tracee, enum stops_resume how);
/* PTRACE_INTERRUPT. */
must_check int stops_interrupt(struct tracee *tracee);
/* PTRACE_SEIZE with these options, PTRACE_INTERRUPT, wait for the stop. On failure nothing stays attached. */
must_check int stops_seize(struct process *process, pid_t tid, struct tracee **out, struct err *err);

/* Keeps this scip on the processor of the tracee (waking another, idle, virtual processor costs 47 to 60
 * us against 2.7). Called at traps; checks only now and then. */
void stops_follow_cpu(const struct tracee *tracee);

#endif
