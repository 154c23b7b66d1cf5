/*
 * Blocking calls that a signal ends without a race.
 *
 * A scip waits for two things at once: stops of its tracees (wait4), or a process to supervise (recv), and
 * signals that announce requests. Blocking the signals, sleeping in sigtimedwait() and then polling with
 * WNOHANG would take two system calls and a queued SIGCHLD for each stop, at every trap. Instead the kernel
 * drops SIGCHLD (default action, no SA_NOCLDWAIT: zombies remain), and the scip blocks in the call itself.
 * The handler only notes a signal. If the signal comes just before the call, after the note was checked, the
 * handler moves the thread past the call.
 */
#ifndef SCIP_TRACEE_KNOCK_H
#define SCIP_TRACEE_KNOCK_H

#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* From now on this signal (1 to 31) ends the calls below and is reported by knock_take(). Other calls that it
 * interrupts are restarted (SA_RESTART); those that cannot be restarted return EINTR, so the signal must be
 * blocked around them. */
void knock_listen(int signal);
/* Makes the kernel drop the SIGCHLD of stops and exits instead of queueing it; waitpid() still reports all.
 */
void knock_quiet_children(void);

/* waitpid() with __WALL. -errno; -EINTR if a signal has been noted, also before the call. */
pid_t knock_wait(pid_t pid, int *status);
/* recv() without flags, likewise. */
ssize_t knock_receive(int sock, void *data, size_t len);
/* The signals that have been noted since the last call, as 1 << signal. */
uint32_t knock_take(void);

#endif
