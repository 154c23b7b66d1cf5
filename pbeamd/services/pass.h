/* Requests that are for another host. */
#ifndef PBEAMD_SERVICES_PASS_H
#define PBEAMD_SERVICES_PASS_H

#include "pbeamd/transport/cluster.h"

/* A request about `target` (NULL: about none) that is for another host is passed on there: 1, it will be
 * answered; 0, it is for this host; -errno with a sentence. */
must_check int pass_elsewhere(struct connection *connection, const Pbeam__Target *target,
			      const struct frame *frame, struct err *err);
/* The connection is gone. */
void pass_forget(struct connection *connection);

#endif
