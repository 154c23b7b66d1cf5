/* The two ends of each connection between parts find each other. */
#ifndef SCIP_CUT_PAIR_H
#define SCIP_CUT_PAIR_H

#include "scip/cut/lead.h"

/* After DUMP: gives each end whose other end is in another part (or in the same part with another keeper) the
 * number of its connection. */
must_check int pair_all(struct lead *lead, struct err *err);
/* One DRAIN to all; *waiting: bytes that are still under way. */
must_check int pair_drain_round(struct lead *lead, uint64_t *waiting, struct err *err);

#endif
