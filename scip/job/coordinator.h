/* The keeper's coordinators: the part of keeper.h's interface that checkpoint and rollback are started
 * through, and what the keeper's loop tells it. Private to keeper.c and coordinator.c. */
#ifndef SCIP_JOB_COORDINATOR_H
#define SCIP_JOB_COORDINATOR_H

#include "scip/job/keeper.h"

/* The keeper's child `pid` has ended: calls `done` if it was the coordinator. True if it was. */
bool coordinator_reaped(struct keeper *keeper, pid_t pid, int status);
/* The first start of a restored job: as keeper_rollback(), with nothing to replace. */
must_check int coordinator_restore(struct keeper *keeper, const char *path, bool force, keeper_done_fn done,
				   void *arg, struct err *err);

/* In keeper.c: closes, in a new child, the descriptors that are the keeper's own. */
void keeper_close_private(struct keeper *keeper);
/* The job's first process, from now on. */
must_check int keeper_set_root(struct keeper *keeper, pid_t root, struct vpid vpid);

#endif
