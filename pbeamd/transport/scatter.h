/* One request to all hosts at once. */
#ifndef PBEAMD_TRANSPORT_SCATTER_H
#define PBEAMD_TRANSPORT_SCATTER_H

#include "pbeamd/transport/cluster.h"

/* Called for each host, with RPC_REPLY or RPC_FAILED and the reply, or DAEMON_NONE if there was none. */
typedef void (*scatter_part_fn)(void *arg, const char *host, uint32_t type, const void *body, size_t len);
/* Called once, after all of them and after scatter_begin() has returned; the scatter has been freed. */
typedef void (*scatter_done_fn)(void *arg);
struct scatter_request {
	uint32_t type;
	const void *body;
	size_t len;
	bool here;	     /* include this host */
	unsigned patience_s; /* 0: some seconds */
	scatter_part_fn came;
	scatter_done_fn done;
};
struct scatter;
/* Sends one request to all hosts. `came` may be called before it returns, `done` not. NULL without memory. */
must_check struct scatter *scatter_begin(struct cluster *cluster, const struct scatter_request *request,
					 void *arg);
void scatter_cancel(struct scatter *scatter);

#endif
