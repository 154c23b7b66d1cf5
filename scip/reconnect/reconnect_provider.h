/* The provider (scip/ends/external.h) that reconnects TCP connections. */
#ifndef SCIP_RECONNECT_PROVIDER_H
#define SCIP_RECONNECT_PROVIDER_H

#include "scip/ends/external.h"

extern const struct external_provider reconnect_provider;

must_check int reconnect_make(struct migrate_target *target, void **state, struct object_restore *restore,
			      const Pbeam__Object *object, int *fd, struct err *err);
must_check int reconnect_finish(struct migrate_target *target, void **state, struct object_restore *restore,
				const Pbeam__Object *object, int fd, struct err *err);

#endif
