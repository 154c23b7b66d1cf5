/* Requests for other hosts. */
#ifndef PBEAMD_SERVICES_PASS_H
#define PBEAMD_SERVICES_PASS_H

#include "pbeamd/transport/cluster.h"

/* Forwards a request about `target` (NULL: none) that is for another host. 1: forwarded, the reply will
 * follow; 0: it is for this host; or -errno. */
must_check int pass_elsewhere(struct connection *connection, const Pbeam__Target *target,
			      const struct frame *frame, struct err *err);
/* The connection has ended. */
void pass_forget(struct connection *connection);

#endif
