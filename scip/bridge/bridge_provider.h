/* The provider (scip/ends/external.h) of bridges; bridge_source.c and bridge_target.c are its two sides. */
#ifndef SCIP_BRIDGE_PROVIDER_H
#define SCIP_BRIDGE_PROVIDER_H

#include "scip/ends/external.h"

extern const struct external_provider bridge_provider;
extern const struct external_provider left_provider; /* bridge_shared.c */

must_check int bridge_make(struct migrate_target *target, void **state, struct object_restore *restore,
			   const Pbeam__Object *object, int *fd, struct err *err);
must_check int bridge_finish(struct migrate_target *target, void **state, struct object_restore *restore,
			     const Pbeam__Object *object, int fd, struct err *err);
/* Drops a pipe's contents from a writer's record: the reader has them. */
void bridge_forget_contents(Pbeam__Pipe *pipe);
void bridge_committed(struct migrate_target *target, void **state);
void bridge_close(struct migrate_target *target, void **state);

#endif
