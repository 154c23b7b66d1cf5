/*
 * What is between the parts of a cut as providers of scip/ends/external.h. scip/cut/cut.h tells the story.
 *
 * "cut", TCP connections: in the image each end has the connection's number, and when the parts are restored
 * the two ends with the same number are connected anew, wherever they are then.
 *
 * "cut-line", pipes and UNIX connections, which go over a bridge: in the image each end has its side of the
 * line, with what was under way in it, and a new bridge goes on from there.
 */
#ifndef SCIP_MIGRATE_CUT_EXTERNAL_H
#define SCIP_MIGRATE_CUT_EXTERNAL_H

#include "scip/ends/external.h"

struct reconnect_end;
extern const struct external_provider cut_provider;

/* out->external: an end of connection number `id`. Returns 1 or -errno. */
must_check int cut_mark(Pbeam__Object *out, uint64_t id, const struct reconnect_end *end, struct err *err);

extern const struct external_provider cut_line_provider;
/* out->external: these lines end here. An empty list: others say so. Returns 1 or -errno. */
must_check int cut_mark_lines(Pbeam__Object *out, const Pbeam__BridgeList *lines, struct err *err);

/* Opens target->acceptor for the other ends that connect; `ready` gets its ports. */
must_check int cut_listen(struct migrate_target *target, Pbeam__MigrateReady *ready, struct err *err);

#endif
