/*
 * Husks that the coordinator of a restore asks the keeper for (rebuild/proto/keeper.proto): forked, named,
 * handed to a spare scip. Nothing here waits: the husk reports when it is ready for its scip.
 */
#ifndef SCIP_JOB_HUSK_H
#define SCIP_JOB_HUSK_H

#include "proto/keeper.pb-c.h"
#include "scip/job/job.h"

struct husk;
/* It has been handed over (err->code 0): a scip takes it soon; or it could not be made. Called once, unless
 * cancelled. */
typedef void (*husk_done_fn)(void *arg, pid_t rpid, const struct err *err);

/* 0: `done` is called later. */
must_check int husk_make(struct husk **out, struct job *job, const Pbeam__HuskRequest *request,
			 husk_done_fn done, void *arg, struct err *err);
/* The husk is not wanted any more: kills it. */
void husk_cancel(struct husk *husk);

#endif
