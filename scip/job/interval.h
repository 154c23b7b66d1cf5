/*
 * --interval TIME: a numbered checkpoint of the whole job each TIME.
 */
#ifndef SCIP_JOB_INTERVAL_H
#define SCIP_JOB_INTERVAL_H

#include "scip/job/job.h"

/* Nothing happens for a job without an interval. */
must_check int interval_start(struct job *job, struct err *err);
void interval_stop(struct job *job);

#endif
