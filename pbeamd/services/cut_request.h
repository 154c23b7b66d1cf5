/* Checkpoints and rollbacks of several parts: docs/CUTS.md. */
#ifndef PBEAMD_SERVICES_CUT_REQUEST_H
#define PBEAMD_SERVICES_CUT_REQUEST_H

#include "pbeamd/services/target.h"

/* True if a job on this host belongs to this group, and no job has the group's name. */
bool cut_is_group(struct server *server, const char *name);
/* True if the target is a job's first process with descendants on other hosts. */
bool cut_is_spread(struct server *server, const struct target *target);
/* Hands the connection over to the leader, `scip cut`; `what` is "checkpoint" or "rollback". */
must_check int cut_lead(struct connection *connection, const char *what, const ProtobufCMessage *message,
			struct err *err);

/* Rolls back to one of the checkpoints of `store` on all hosts. `vpid`: the running process, 0 if there is
 * none or the target is a group. */
must_check int cut_rollback(struct connection *connection, const Pbeam__RollbackRequest *wish,
			    const char *store, struct vpid vpid, struct err *err);

#endif
