/* `scip restore` and `pbeamctl rollback` on one host: the driver over the steps of scip/rebuild/rebuild.h. */
#ifndef SCIP_ROLLBACK_ROLLBACK_RUN_H
#define SCIP_ROLLBACK_ROLLBACK_RUN_H

#include "scip/rebuild/rebuild.h"

/* Brings the processes of the image back, in place of options->replace if that is set. Runs in a coordinator.
 * If it fails before the commit (rebuild.h) nothing has changed. */
must_check int rollback_run(struct names *names, struct image_reader *image,
			    const struct rebuild_options *options, struct rebuild_result *result,
			    struct err *err);

#endif
