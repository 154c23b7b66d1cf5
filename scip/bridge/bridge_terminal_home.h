/* Terminals of a program that comes home: it gets the old one back, and the line is over. */
#ifndef SCIP_BRIDGE_TERMINAL_HOME_H
#define SCIP_BRIDGE_TERMINAL_HOME_H

#include "scip/bridge/bridge.h"
#include "scip/ends/external.h"

struct terminal_home;

/* In the place of the kind's restore: 1: *fd is the old one; 0: it is not here, or has no other side any
 * more; -errno: it may not come now. */
must_check int terminal_home_make(struct terminal_home **homes, const struct migrate_target *target,
				  struct object_restore *restore, const Pbeam__Object *object,
				  const Pbeam__BridgeLine *line, int *fd, struct err *err);
/* In the place of the kind's finish: 1: it is one of those. */
must_check int terminal_home_finish(struct terminal_home *homes, struct object_restore *restore,
				    const Pbeam__Object *object, const Pbeam__BridgeLine *line,
				    struct err *err);
/* The lines end; settings and what was typed are put back. */
void terminal_home_committed(struct terminal_home *homes);
void terminal_home_free(struct terminal_home *homes);

#endif
