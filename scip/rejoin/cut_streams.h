/* Bridged streams: pipes and UNIX connections of one part of a cut that go over a bridge to another part. */
#ifndef SCIP_REJOIN_CUT_STREAMS_H
#define SCIP_REJOIN_CUT_STREAMS_H

#include "proto/cut.pb-c.h"
#include "scip/bridge/bridge.h"
#include "scip/object/object.h"

/* One side of a bridged stream that is held; `ino` is the inode of the program's end. */
struct cut_stream {
	uint64_t ino;
	Pbeam__BridgeStream *side;
	bool saved;
};
struct cut_streams {
	struct bridge_hold *floats, *anchors;
	struct cut_stream *v;
	size_t n;
};

/* Finds the bridged streams and holds them until cut_streams_free(). All processes of all parts must be
 * frozen. Appends each to reply->bridges. -EBUSY: a stream has just ended or moved, try again. */
must_check int cut_streams_find(struct cut_streams *streams, struct object_dump *dump, Pbeam__CutReply *reply,
				struct err *err);
/* Turns a pipe or UNIX connection to another part on the same host, which the leader has found, into a
 * bridged stream. Nothing is in flight in it: the kernel's queue is dumped with its reader. */
must_check int cut_streams_join(struct cut_streams *streams, struct object_dump *dump,
				const Pbeam__CutRequest *request, struct err *err);
/* Implements object_external.dump. */
must_check int cut_streams_dump(struct cut_streams *streams, struct object_dump *dump,
				const struct object_source *of, Pbeam__Object *out, struct err *err);
void cut_streams_free(struct cut_streams *streams);

#endif
