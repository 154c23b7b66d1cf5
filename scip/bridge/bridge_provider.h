/* Between source.c and target.c, the two sides of the provider "bridge". */
#ifndef SCIP_BRIDGE_EXTERNAL_H
#define SCIP_BRIDGE_EXTERNAL_H

#include "scip/ends/external.h"

extern const struct external_provider bridge_provider;
extern const struct external_provider left_provider; /* shared.c */

must_check int bridge_make(struct migrate_target *target, void **state, struct object_restore *restore,
			   const Pbeam__Object *object, int *fd, struct err *err);
must_check int bridge_finish(struct migrate_target *target, void **state, struct object_restore *restore,
			     const Pbeam__Object *object, int fd, struct err *err);
/* The end's queue is as it was; *other is the other end's descriptor, the caller's to keep, -1 none. */
must_check int bridge_fill(struct object_restore *restore, const Pbeam__Object *object, int fd, int *other,
			   struct err *err);
/* What a writer has written stays where its reader is. */
void bridge_forget_contents(Pbeam__Pipe *pipe);
void bridge_committed(struct migrate_target *target, void **state);
void bridge_close(struct migrate_target *target, void **state);

#endif
