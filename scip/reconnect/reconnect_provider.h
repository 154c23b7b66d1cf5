/* The swapping of TCP connections as a provider of scip/ends/external.h. */
#ifndef SCIP_RECONNECT_EXTERNAL_H
#define SCIP_RECONNECT_EXTERNAL_H

#include "scip/ends/external.h"

extern const struct external_provider reconnect_provider;

/* ---- source.c ---- */
struct reconnect_end;
/* True for a connection whose other end is not in the group; its addresses in `end`. */
bool reconnect_is_candidate(struct object_dump *dump, const struct object_source *of,
			    struct reconnect_end *end);
/* The record of a drained end, as its own options say, not as draining has made them; these are the record's
 * afterwards. */
must_check int reconnect_record_end(struct object_dump *dump, struct reconnect_end *end, Pbeam__Object *out,
				    struct err *err);

/* ---- target.c ---- */
must_check int reconnect_make(struct migrate_target *target, void **state, struct object_restore *restore,
			      const Pbeam__Object *object, int *fd, struct err *err);
must_check int reconnect_finish(struct migrate_target *target, void **state, struct object_restore *restore,
				const Pbeam__Object *object, int fd, struct err *err);

#endif
