/* What would happen: nothing is changed by these. */
#ifndef SCIP_ROLLBACK_ROLLBACK_LOOK_H
#define SCIP_ROLLBACK_ROLLBACK_LOOK_H

#include "proto/rpc.pb-c.h"
#include "scip/rebuild/rebuild.h"

/* Refuses what rollback_run() would refuse before it stops anything. 0 or -errno. */
must_check int rollback_check(struct names *names, struct image_reader *image,
			      const struct rebuild_options *options, struct err *err);
/* rollback_check(), and the list of the files with what happens to each. 0 or -errno. */
must_check int rollback_forecast(struct names *names, struct image_reader *image,
				 const struct rebuild_options *options, Pbeam__FileFate ***fates, size_t *n,
				 struct err *err);

#endif
