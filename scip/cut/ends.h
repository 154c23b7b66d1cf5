/* The ends, within one part, of TCP connections that leave it. */
#ifndef SCIP_CUT_ENDS_H
#define SCIP_CUT_ENDS_H

#include "proto/cut.pb-c.h"
#include "scip/object/object.h"
#include "scip/reconnect/reconnect_end.h"

struct cut_end {
	struct reconnect_end end;
	uint64_t id; /* of the connection; 0: its other end is in no part */
};
struct cut_ends {
	struct cut_end *v;
	size_t n;
	unsigned round; /* of draining */
};

/* Finds them and fills reply->ends, in order. */
must_check int cut_ends_find(struct cut_ends *ends, struct object_dump *dump, Pbeam__CutReply *reply,
			     struct err *err);
/* One round of draining; the first request tells the ids. Fills reply->ends, in order. */
must_check int cut_ends_drain(struct cut_ends *ends, struct object_dump *dump,
			      const Pbeam__CutRequest *request, Pbeam__CutReply *reply, struct err *err);
/* All is drained: looks at the queues. */
must_check int cut_ends_look(struct cut_ends *ends, struct err *err);
/* As object_external.dump. */
must_check int cut_ends_dump(struct cut_ends *ends, struct object_dump *dump, const struct object_source *of,
			     Pbeam__Object *out, struct err *err);
/* What draining has changed is put back. */
void cut_ends_free(struct cut_ends *ends);

#endif
