/* The ends of TCP connections from one part of a cut to other parts, while the part is dumped. */
#ifndef SCIP_REJOIN_CUT_ENDS_H
#define SCIP_REJOIN_CUT_ENDS_H

#include "proto/cut.pb-c.h"
#include "scip/ends/end_tcp.h"
#include "scip/object/object.h"

struct cut_end {
	struct end_tcp end;
	uint64_t id; /* of the connection; 0 if its other end is in no part */
};
struct cut_ends {
	struct cut_end *v;
	size_t n;
	unsigned round; /* number of completed drain rounds */
};

/* Finds the ends and appends each to reply->ends. */
must_check int cut_ends_find(struct cut_ends *ends, struct object_dump *dump, Pbeam__CutReply *reply,
			     struct err *err);
/* Drains one round. The first request has the connections' ids, in the order of cut_ends_find(). Appends to
 * reply->ends, in this order, what each end still has queued. */
must_check int cut_ends_drain(struct cut_ends *ends, struct object_dump *dump,
			      const Pbeam__CutRequest *request, Pbeam__CutReply *reply, struct err *err);
/* Reads the queues of all ends, once nothing is in flight. */
must_check int cut_ends_look(struct cut_ends *ends, struct err *err);
/* Implements object_external.dump. */
must_check int cut_ends_dump(struct cut_ends *ends, struct object_dump *dump, const struct object_source *of,
			     Pbeam__Object *out, struct err *err);
/* Undoes what draining changed, and frees the ends. */
void cut_ends_free(struct cut_ends *ends);

#endif
