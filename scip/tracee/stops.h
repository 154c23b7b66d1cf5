/*
 * Waiting for tracees and saying what stop they are in; interrupting and resuming them. ptrace(2), "Stopped
 * states".
 */
#ifndef SCIP_TRACEE_STOPS_H
#define SCIP_TRACEE_STOPS_H

#include "scip/tracee/process.h"

/* PTRACE_O_* that every tracee of ours is seized with: EXITKILL, TRACECLONE, TRACEFORK, TRACEVFORK,
 * TRACEEXEC, TRACESECCOMP, TRACESYSGOOD, TRACEEXIT not. */
unsigned stops_options(void);

/* Takes one wait status for a thread: `pid` as for waitpid (-1 any), `flags` WNOHANG or 0; __WALL is added.
 * Updates the tracee (adding it when it is new) and returns 1 with *out, 0 with WNOHANG when there is none,
 * -ECHILD when no tracee is left, -EINTR. An exited thread is returned with stop TRACEE_EXITED and removed by
 * the caller. */
must_check int stops_wait(struct process *process, pid_t pid, int flags, struct tracee **out, int *status);

enum stops_resume { STOPS_CONT, STOPS_SYSCALL };
/* Resumes a stopped tracee according to its stop: signal-delivery with its signal, group-stop with
 * PTRACE_LISTEN, all else with `how`. -ESRCH: it is gone. */
must_check int stops_resume(struct tracee *tracee, enum stops_resume how);
/* PTRACE_INTERRUPT. */
must_check int stops_interrupt(struct tracee *tracee);
/* PTRACE_SEIZE with our options, PTRACE_INTERRUPT, wait for the stop. On failure nothing stays attached. */
must_check int stops_seize(struct process *process, pid_t tid, struct tracee **out, struct err *err);

/* Keeps this scip on the processor where the tracee runs (waking another, idle, virtual processor costs 47 to
 * 60 us against 2.7). Called at traps; looks only now and then. */
void stops_follow_cpu(const struct tracee *tracee);

#endif
