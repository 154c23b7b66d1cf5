/* `scip run --track DIR`: directories that the checkpoints of the job save as a whole. */
#ifndef SCIP_JOB_TRACKING_H
#define SCIP_JOB_TRACKING_H

#include "scip/job/keeper.h"

/* Adds DIR to options->track. Refused are `/`, what has or is in ΦBEAM's own directories, and what has or is
 * in another one that is tracked. 0 or -errno. */
must_check int tracking_add(struct keeper_options *options, const char *dir, struct err *err);
/* Refuses --dir in a directory that is tracked. 0 or -errno. */
must_check int tracking_check_store(const struct keeper_options *options, struct err *err);

#endif
