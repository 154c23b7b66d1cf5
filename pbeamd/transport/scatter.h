/* One request to all hosts at once. */
#ifndef PBEAMD_TRANSPORT_SCATTER_H
#define PBEAMD_TRANSPORT_SCATTER_H

#include "pbeamd/transport/cluster.h"

/* Called for each host: type RPC_REPLY or RPC_FAILED and the answer, or DAEMON_NONE where there is
 * none.
 */
typedef void (*scatter_part_fn)(void *arg, const char *host, uint32_t type, const void *body, size_t len);
/* Once, later, after all of them; the scatter is gone by then. */
typedef void (*scatter_done_fn)(void *arg);
struct scatter_request {
	uint32_t type;
	const void *body;
	size_t len;
	bool here;	     /* this host is asked as well */
	unsigned patience_s; /* 0: some seconds */
	scatter_part_fn came;
	scatter_done_fn done;
};
struct scatter;
/* The same of all hosts. `came` may be called before it returns, `done` not. NULL
 * without memory. */
must_check struct scatter *scatter_begin(struct cluster *cluster, const struct scatter_request *request,
					 void *arg);
void scatter_cancel(struct scatter *scatter);

#endif
