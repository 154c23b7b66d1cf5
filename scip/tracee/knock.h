/*
 * A wait for tracees that a signal ends without a race.
 *
 * A scip has to hear two things at once: its tracees' stops (waitpid) and whoever calls it (signals). To
 * block all signals, sleep in sigtimedwait() and then look with waitpid(WNOHANG) takes two system calls and a
 * queued SIGCHLD for each stop, at every trap. Instead SIGCHLD is dropped by the kernel (default action, no
 * SA_NOCLDWAIT: zombies stay), and the wait blocks in wait4() itself. A call's signal is noted by a handler;
 * if it comes just before the wait, after the note was looked at, the handler moves the thread past it.
 */
#ifndef SCIP_TRACEE_KNOCK_H
#define SCIP_TRACEE_KNOCK_H

#include <signal.h>
#include <stdint.h>
#include <sys/types.h>

/* From now on this signal knocks: knock_wait() ends, knock_take() tells of it once. For 1 to 31. Handlers
 * restart what they interrupt (SA_RESTART); a call that cannot be restarted returns EINTR, so block the
 * signal around those that must not. */
void knock_listen(int signal);
/* SIGCHLD of stops and ends is dropped instead of queued; waitpid() sees all as before. */
void knock_quiet_children(void);
/* While `answer` is set it is called by the handler itself, at once, and nothing is noted: for a thread
 * asleep elsewhere. NULL: knocks are noted again. */
void knock_answer(void (*answer)(int signal));

/* waitpid() with __WALL; -EINTR as soon as a knock has come, also before. -errno. */
pid_t knock_wait(pid_t pid, int *status);
/* The signals that have come since the last call, as 1 << signal. */
uint32_t knock_take(void);

#endif
