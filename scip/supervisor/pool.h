/*
 * The pool of spare scips of a job, kept by the keeper.
 *
 * All idle scips block in recv() on one end of a seqpacket pair; a scip that hands a process over sends
 * on the other end. (With poll the kernel would wake all waiters, with recv one.) The count of idle
 * scips is in a shared page. The sender that takes it below the low mark writes to an eventfd, and the
 * keeper forks more. So a fork costs the keeper nothing while spares exist, and only the socket's
 * buffer limits bursts.
 *
 * A quiet job has no spare: a thousand jobs would have a thousand processes (0.1 MiB and the kernel's share
 * each) that save a first fork half a millisecond. The first fork makes the pool want two, and each time that
 * it has become empty it wants twice as many, up to 64. When no process has been handed over for two seconds,
 * all are told to end (HANDOFF_RETIRE, which one of them receives). After that nothing wakes the keeper.
 *
 * If no scip can be made (RLIMIT_NPROC, memory), processes wait in the hand-over socket and the keeper
 * tries again. If for a whole minute none could be made and no process was taken by a scip whose own
 * had ended, all processes may be waiting for those in the socket. Then the keeper removes them one by
 * one, kills them, and logs it. A machine that is merely slow never gets there.
 */
#ifndef SCIP_SUPERVISOR_POOL_H
#define SCIP_SUPERVISOR_POOL_H

#include "scip/supervisor/handoff_message.h"
#include "scip/supervisor/supervisor.h"

struct pool;

/* Makes the socket, the shared page and the eventfd. `before_scip` is called in every new scip to close
 * the keeper's own descriptors. */
must_check int pool_open(struct pool **out, struct names *names, void (*before_scip)(void *arg), void *arg,
			 struct err *err);
/* In a program that has succeeded another one (successor.h): the pool with this seat and these scips.
 * -ENOMEM. */
must_check int pool_adopt(struct pool **out, const struct seat *seat, const int32_t *scips, size_t nscips,
			  void (*before_scip)(void *arg), void *arg);
const struct seat *pool_seat(const struct pool *pool);
/* The scips that live; the array is the pool's. */
size_t pool_scips(const struct pool *pool, const pid_t **scips);
/* Ends the idle scips, and returns their number; pool_fill() makes new ones, best once these have ended. */
int pool_retire(struct pool *pool);
/* Ends all scips and thereby their processes. */
void pool_close(struct pool *pool);
/* Readable when spares are needed: the caller then calls pool_fill(). */
int pool_wake_fd(const struct pool *pool);
/* Forks spares up to the high mark. Returns after how many ms to call again, 0 for never, or -errno: the
 * pool is unusable. */
must_check int pool_fill(struct pool *pool, struct err *err);
#define POOL_PATIENCE_NS      60000000000ull
#define POOL_PATIENCE_STEP_NS 1000000000ull
/* A child of the keeper has ended. True if it was a scip, whose entries and socket have been removed. */
bool pool_reaped(struct pool *pool, pid_t pid, int status);
/* Hands a child of the keeper (the job's first process or a husk) to a spare scip. */
must_check int pool_hand_over(struct pool *pool, const struct handoff *handoff, struct err *err);
struct fill_signs *pool_signs(const struct pool *pool);
/* With `report` the keeper gets SIGCHLD whenever a process has left the name table. */
void pool_report_ends(struct pool *pool, bool report);
/* Sets the active coordinator, 0 for none: the husks of a coordinator that has ended end themselves. */
void pool_set_coordinator(struct pool *pool, pid_t pid);

#endif
