/* Pipes and UNIX connections of a part that go over a bridge to another part. */
#ifndef SCIP_CUT_LINES_H
#define SCIP_CUT_LINES_H

#include "proto/cut.pb-c.h"
#include "scip/bridge/bridge.h"
#include "scip/object/object.h"

/* One side of a line, standing still; `ino` is of the program's end. */
struct cut_line {
	uint64_t ino;
	Pbeam__BridgeLine *side;
	bool saved;
};
struct cut_lines {
	struct bridge_hold *floats, *anchors;
	struct cut_line *v;
	size_t n;
};

/* All processes of all parts are frozen. From here on these lines stand still, until cut_lines_free(); fills
 * reply->bridges. */
must_check int cut_lines_find(struct cut_lines *lines, struct object_dump *dump, Pbeam__CutReply *reply,
			      struct err *err);
/* What the leader has found to be connected with another part on this host becomes a line, with nothing under
 * way: a kernel's queue is its reader's. */
must_check int cut_lines_join(struct cut_lines *lines, struct object_dump *dump,
			      const Pbeam__CutRequest *request, struct err *err);
/* As object_external.dump. */
must_check int cut_lines_dump(struct cut_lines *lines, struct object_dump *dump,
			      const struct object_source *of, Pbeam__Object *out, struct err *err);
void cut_lines_free(struct cut_lines *lines);

#endif
