/* Relations between parts of one job: a process and its stub, the two sides of a bridge. */
#ifndef SCIP_CUT_RELATIONS_H
#define SCIP_CUT_RELATIONS_H

#include "scip/cut/lead.h"

/* After FREEZE: keeps the replies in part->relations, and checks that the process of every stub is in another
 * part of its job. -EBUSY if a process or its exit status is between two hosts. */
must_check int relations_match(struct lead *lead, struct err *err);
/* After DUMP, when the connections are paired: keeps the replies in part->bridged, checks that both sides of
 * every bridge are saved, and joins two ends of different parts on one host to one bridged stream. */
must_check int relations_match_bridges(struct lead *lead, struct err *err);
/* Adds the joined ends of the part to the request DRAIN. -ENOMEM. */
must_check int relations_add_joins(const struct lead_part *part, Pbeam__CutRequest *request);
/* Adds the part's relations to the manifest: of the guests, only those whose stub is in a part. -ENOMEM. */
must_check int relations_describe(const struct lead *lead, const struct lead_part *part, Pbeam__CutPart *out);

#endif
