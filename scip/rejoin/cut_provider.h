/*
 * Providers (scip/ends/external.h) for connections between the parts of a cut (scip/cut/cut.h).
 *
 * "cut" restores TCP connections. The image has the connection's number for each end. When the parts are
 * restored, the two ends with the same number connect to each other, on whichever hosts they are.
 *
 * "cut-line" restores bridged streams: pipes and UNIX connections that go over a bridge. The image has one
 * side of the stream for each end, with the data in flight. A new bridge continues from there.
 */
#ifndef SCIP_REJOIN_CUT_PROVIDER_H
#define SCIP_REJOIN_CUT_PROVIDER_H

#include "scip/ends/external.h"

struct end_tcp;
extern const struct external_provider cut_provider;

/* Marks `out` as an end of connection number `id`. Returns 1, or -ENOMEM. */
must_check int cut_mark(Pbeam__Object *out, uint64_t id, const struct end_tcp *end, struct err *err);

extern const struct external_provider cut_stream_provider;
/* Marks `out` as the end of these bridged streams. The list is empty if another description of the same pipe
 * has them. Returns 1, or -ENOMEM. */
must_check int cut_mark_streams(Pbeam__Object *out, const Pbeam__BridgeList *streams, struct err *err);

/* Opens target->acceptor for the ends that connect to this part, and stores its ports in `ready`. The caller
 * closes the acceptor. */
must_check int cut_listen(struct migrate_target *target, Pbeam__MigrateReady *ready, struct err *err);

#endif
