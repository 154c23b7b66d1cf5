/*
 * What would prevent the restore of an image on this host, found without changing anything.
 *
 * The checks are those that a restore makes before it begins (rebuild_check()): there the first failure ends
 * the restore, here each is listed and the checks go on. In addition names and limits are tried that a
 * restore meets only while it makes the objects and processes (rebuild_limits.c); a rollback's old processes
 * hold them.
 */
#ifndef SCIP_REBUILD_REBUILD_OBSTACLES_H
#define SCIP_REBUILD_REBUILD_OBSTACLES_H

#include "scip/rebuild/rebuild.h"

/* One sentence each, with the remedy; owned. */
struct rebuild_obstacles {
	char **v;
	size_t n;
};

/* Lists them for the image at `path`. Returns 0, also if there are some; -errno if the checks could not be
 * made. The caller frees the list in either case. */
must_check int rebuild_list_obstacles(struct names *names, const char *path, bool force,
				      struct rebuild_obstacles *out, struct err *err);
/* The same for an image that is being saved, while its processes are here and hold what they use: names are
 * not tried, and limits are compared with the need of the program alone. The image may be without contents
 * if options->trusted. */
must_check int rebuild_list_obstacles_saved(struct names *names, struct image_reader *image,
					    const struct rebuild_options *options,
					    struct rebuild_obstacles *out, struct err *err);
void rebuild_obstacles_free(struct rebuild_obstacles *obstacles);

#endif
