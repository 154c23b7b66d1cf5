/* The swapping of TCP connections as a provider of scip/migrate/external.h. */
#ifndef SCIP_MIGRATE_SWAP_EXTERNAL_H
#define SCIP_MIGRATE_SWAP_EXTERNAL_H

#include "scip/migrate/external.h"

extern const struct external_provider swap_provider;

/* ---- source.c ---- */
struct swap_end;
/* True for a connection whose other end is not in the group; its addresses in `end`. */
bool swap_is_candidate(struct object_dump *dump, const struct object_source *of, struct swap_end *end);
/* The record of a drained end, as its own options say, not as draining has made them; these are the record's
 * afterwards. */
must_check int swap_record_end(struct object_dump *dump, struct swap_end *end, Pbeam__Object *out,
			       struct err *err);

/* ---- target.c ---- */
must_check int swap_make(struct migrate_target *target, void **state, struct object_restore *restore,
			 const Pbeam__Object *object, int *fd, struct err *err);
must_check int swap_finish(struct migrate_target *target, void **state, struct object_restore *restore,
			   const Pbeam__Object *object, int fd, struct err *err);

#endif
