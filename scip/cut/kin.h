/* What parts of one job have in common: a process and its stub, the two sides of a bridge. */
#ifndef SCIP_CUT_KIN_H
#define SCIP_CUT_KIN_H

#include "scip/cut/lead.h"

/* After FREEZE: every stub's process is in another part of its job; part->kin. -EBUSY where one is just on
 * its way. */
must_check int kin_match(struct lead *lead, struct err *err);
/* After DUMP, once the connections are paired: every bridge has both its sides, and ends of two parts on one
 * host that belong together become one; part->bridged. */
must_check int kin_match_bridges(struct lead *lead, struct err *err);
/* To DRAIN: the latter. -ENOMEM. */
must_check int kin_add_joins(const struct lead_part *part, Pbeam__CutRequest *request);
/* Into the manifest; only those guests whose stub is in a part. -ENOMEM. */
must_check int kin_describe(const struct lead *lead, const struct lead_part *part, Pbeam__CutPart *out);

#endif
