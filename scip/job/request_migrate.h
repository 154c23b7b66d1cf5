/* What arrivals of a guest keeper's beginning and later ones share. */
#ifndef SCIP_JOB_REQUEST_MIGRATE_H
#define SCIP_JOB_REQUEST_MIGRATE_H

#include "proto/cluster.pb-c.h"
#include "scip/job/coordinator.h"
#include "scip/job/job.h"

/* The coordinator of an arrival was `killed`: another one does what is left, and asks the registry what came
 * of it unless the killed one had said that; err.code is -ECANCELED if nothing. False: it could not be
 * started. */
bool arrival_ask(struct job *job, const Pbeam__MigrateBegin *begin, const struct coordinator_outcome *killed,
		 coordinator_done_fn done, void *arg);
/* The processes that `begin` announced run here: their line to the stub. */
must_check int arrival_settle(struct job *job, const Pbeam__MigrateBegin *begin, struct err *err);

#endif
