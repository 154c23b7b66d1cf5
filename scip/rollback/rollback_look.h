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

/* What a job that has ended had open is not overwritten if somebody else has written to it since: -ESTALE.
 * With options->force it is kept beside (image/file_guard.h). 0 or -errno. */
struct rollback_kept {
	char **notes, **paths;
	size_t nnotes, npaths;
};
must_check int rollback_guard(struct names *names, struct image_reader *image,
			      const struct rebuild_options *options, struct rollback_kept *kept,
			      struct err *err);

#endif
