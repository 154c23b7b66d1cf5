/* Checkpoints and rollbacks of several parts: docs/CUTS.md. */
#ifndef PBEAMD_SERVICES_CUT_REQUEST_H
#define PBEAMD_SERVICES_CUT_REQUEST_H

#include "pbeamd/services/target.h"

/* True if a job here is of this group, and none has the name itself. */
bool cut_is_group(struct server *server, const char *name);
/* True if it is a job's first process, and some of its descendants are on other hosts. */
bool cut_is_spread(struct server *server, const struct target *target);
/* Hands the connection over to the leader, `scip cut`; `what` is "checkpoint" or "rollback". */
must_check int cut_lead(struct connection *connection, const char *what, const ProtobufCMessage *message,
			struct err *err);

/* Rollback to a checkpoint of those called `store`, of all hosts. `vpid`: of what runs, 0 where nothing does
 * or a group is meant. */
must_check int cut_rollback(struct connection *connection, const Pbeam__RollbackRequest *wish,
			    const char *store, struct vpid vpid, struct err *err);

#endif
