/*
 * The job changes to another version's scip while it runs (docs/UPGRADE.md).
 *
 * The keeper goes first: it executes the new file in its own process (supervisor/successor.h). The new keeper
 * replaces its idle scips by new ones, so that every process that is born from now on has a new scip, and
 * starts a coordinator. That freezes one process after the other, has its scip execute the new file, and
 * thaws it. If it is killed in between, some scips are of the old version, which serves as before, and
 * another request goes on from there.
 */
#ifndef SCIP_JOB_UPGRADE_H
#define SCIP_JOB_UPGRADE_H

#include "proto/successor.pb-c.h"
#include "scip/job/coordinator.h"
#include "scip/supervisor/successor.h"

/* In the new keeper: what the old one had. `job` is zeroed but for its options. *connection is the one that
 * waits for the reply, -1 none; the caller's. */
must_check int upgrade_take_over(struct job *job, const struct successor *from,
				 void (*before_scip)(void *arg), int *connection, struct err *err);
/* In the coordinator. Every process that has a scip of another file gets one of this program's. */
must_check int upgrade_scips(struct job *job, uint32_t *processes, struct err *err);
/* In the new keeper, once it runs: starts the coordinator, which replies on the connection. */
void upgrade_go_on(struct job *job, int connection);
/* Replies to the connection that the old program cannot give way. */
void upgrade_refused(int connection, const char *reason);

#endif
