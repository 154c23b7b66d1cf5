/* Terminals of a program that returns: it gets the old terminal back, and the bridged stream ends. */
#ifndef SCIP_BRIDGE_TERMINAL_HOME_H
#define SCIP_BRIDGE_TERMINAL_HOME_H

#include "scip/bridge/bridge.h"
#include "scip/ends/external.h"

struct terminal_home;

/* Replaces the kind's restore. Returns 1 with *fd the old terminal, 0 if the terminal is not on this host or
 * is hung up, -errno if it cannot be taken back now. */
must_check int terminal_home_make(struct terminal_home **homes, const struct migrate_target *target,
				  struct object_restore *restore, const Pbeam__Object *object,
				  const Pbeam__BridgeStream *stream, int *fd, struct err *err);
/* Replaces the kind's finish. Returns 1 if the terminal is one of `homes`, else 0 or -errno. */
must_check int terminal_home_finish(struct terminal_home *homes, struct object_restore *restore,
				    const Pbeam__Object *object, const Pbeam__BridgeStream *stream,
				    struct err *err);
/* Ends the streams; puts back settings and pending input. */
void terminal_home_committed(struct terminal_home *homes);
void terminal_home_free(struct terminal_home *homes);

#endif
