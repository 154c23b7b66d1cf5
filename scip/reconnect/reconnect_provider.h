/* The provider (scip/ends/external.h) that reconnects TCP connections. */
#ifndef SCIP_RECONNECT_PROVIDER_H
#define SCIP_RECONNECT_PROVIDER_H

#include "scip/ends/external.h"

extern const struct external_provider reconnect_provider;

/* ---- reconnect_source.c ---- */
struct reconnect_end;
/* True for a connection whose other end is not in the group; stores its addresses in `end`. */
bool reconnect_is_candidate(struct object_dump *dump, const struct object_source *of,
			    struct reconnect_end *end);
/* Dumps a drained end, with the options it had before draining. Moves end->options into `out`. */
must_check int reconnect_record_end(struct object_dump *dump, struct reconnect_end *end, Pbeam__Object *out,
				    struct err *err);

/* ---- reconnect_target.c ---- */
must_check int reconnect_make(struct migrate_target *target, void **state, struct object_restore *restore,
			      const Pbeam__Object *object, int *fd, struct err *err);
must_check int reconnect_finish(struct migrate_target *target, void **state, struct object_restore *restore,
				const Pbeam__Object *object, int fd, struct err *err);

#endif
