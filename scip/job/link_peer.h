/* Connections to the hosts that have stubs of processes here, or the job's console. */
#ifndef SCIP_JOB_LINK_PEER_H
#define SCIP_JOB_LINK_PEER_H

#include "scip/job/link_process.h"

struct link_peer {
	struct link_peer *next;
	struct link_process *process;
	struct stream stream; /* fd -1: not connected */
	bool dialing;
	char host[CHANNEL_HOST_MAX];
};

/* The one to that host. If there is no connection it is made, and process->calls->connected() or
 * unconnected() is called. NULL: no memory. */
struct link_peer *link_peer_want(struct link_process *process, const char *host);
bool link_peer_is_connected(const struct link_peer *peer);
/* No effect without a connection. */
void link_peer_send(struct link_peer *peer, uint32_t type, const ProtobufCMessage *message);
/* It sent what it must not. Everything that uses the connection begins again. */
void link_peer_drop(struct link_peer *peer);

#endif
