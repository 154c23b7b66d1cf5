/*
 * The pool of spare scips of a job, kept by the keeper.
 *
 * All idle scips wait in a blocking receive on one end of a seqpacket pair; whoever has a process to hand
 * over sends on the other end. (A blocking receive, not poll: the kernel wakes one of its waiters, not all.)
 * The count of idle scips is in a page that all share; the sender that takes it below the low mark writes to
 * an eventfd on which the keeper polls, and the keeper forks more. So a fork costs the keeper nothing while
 * spares are there, and bursts are limited by the socket's buffer only.
 *
 * Where no process can be made (RLIMIT_NPROC, memory) processes wait in the hand-over socket. The keeper
 * tries again and again. Only when for a whole minute none could be made, nor any process was taken by a scip
 * whose own had ended, everything may be waiting for what waits: then it takes them out one by one, kills
 * them, and says so. A machine that is merely slow never comes to that.
 */
#ifndef SCIP_SUPERVISOR_POOL_H
#define SCIP_SUPERVISOR_POOL_H

#include "scip/supervisor/supervisor.h"

struct pool;

/* Makes the socket, the shared page, the eventfd. `before_scip` is called in every new scip: it closes what
 * is the keeper's own. */
must_check int pool_open(struct pool **out, struct names *names, void (*before_scip)(void *arg), void *arg,
			 struct err *err);
/* Ends all scips, and with them their processes. */
void pool_close(struct pool *pool);
/* Readable when spares are needed: call pool_fill(). */
int pool_wake_fd(const struct pool *pool);
/* Forks spares up to the high mark. 1: something is left to see to, call again in a little while. -errno when
 * the pool is beyond use. */
must_check int pool_fill(struct pool *pool, struct err *err);
#define POOL_PATIENCE_NS      60000000000ull
#define POOL_PATIENCE_STEP_NS 1000000000ull
/* A child of the keeper has ended. True if it was a scip: what it left behind has been cleaned up. */
bool pool_reaped(struct pool *pool, pid_t pid, int status);
/* Gives a process of the keeper's (the first one, a husk) to a spare scip. */
must_check int pool_hand_over(struct pool *pool, const struct handoff *handoff, struct err *err);
struct fill_signs *pool_signs(const struct pool *pool);
/* The coordinator that is at work, 0 for none: the husks of one that has ended give themselves up. */
void pool_set_coordinator(struct pool *pool, pid_t pid);

#endif
