/*
 * Migrated UDP ports, in the source's coordinator. The peers of each port are held by `scip reconnect` on
 * their hosts (reconnect_callers.h) and reconnected to the new address at the commit.
 *
 * A connected port needs no bridge (`direct`) if the socket at its peer's address is held: the peer then
 * receives from the new address, by connect() or by a receive filter. For any other port its bridge
 * (scip/bridge/bridge_port.c) gets the list of peers that no longer need the bridge.
 */
#ifndef SCIP_RECONNECT_PORTS_H
#define SCIP_RECONNECT_PORTS_H

#include "proto/reconnect.pb-c.h"
#include "scip/ends/external.h"
#include "scip/object/inet.h"

struct reconnect_port {
	uint64_t ino;
	struct inet_address own, peer; /* real addresses; peer.len is 0 if unconnected */
	bool alone;		       /* no other socket has its address, so sock_diag finds it */
	bool direct;
	ProtobufCBinaryData *callers; /* held sockets that are connected to it */
	size_t ncallers;
};
struct reconnect_ports {
	struct reconnect_port *v;
	size_t n;
	uint64_t *group; /* inodes of the group's sockets */
	size_t ngroup;
	struct inet_address host; /* address of the target host */
};

/* True if the job has bound UDP sockets; its processes still run. */
bool reconnect_ports_any(struct migrate_source *source);
/* Finds the bound UDP sockets of the frozen group, except those connected to each other. */
must_check int reconnect_ports_find(struct reconnect_ports *ports, struct migrate_source *source,
				    struct object_dump *dump, struct err *err);
/* Removes the ports without `wanted[i]`. */
void reconnect_ports_keep(struct reconnect_ports *ports, const bool *wanted);
/* Fills a HOLD request. hosts[0] is this host. -ENOMEM. */
must_check int reconnect_ports_describe(const struct reconnect_ports *ports,
					const struct migrate_source *source, const Pbeam__HostList *hosts,
					Pbeam__ReconnectRequest *request);
/* Evaluates one host's reply to HOLD. Returns the number of ports whose peers it holds, or -ENOMEM. */
must_check int reconnect_ports_take(struct reconnect_ports *ports, const Pbeam__ReconnectReply *reply);
/* Fills a LEAD request, once the real addresses are known (source->addresses). */
must_check int reconnect_ports_lead(const struct reconnect_ports *ports, const struct migrate_source *source,
				    Pbeam__ReconnectRequest *request, struct err *err);
/* Implements a provider's dump for the ports that need no bridge. */
must_check int reconnect_ports_dump(const struct reconnect_ports *ports, struct migrate_source *source,
				    struct object_dump *dump, const struct object_source *of,
				    Pbeam__Object *out, struct err *err);
/* Returns the port of a socket, or NULL. */
const struct reconnect_port *reconnect_ports_of(const struct reconnect_ports *ports, uint64_t ino);
void reconnect_ports_free(struct reconnect_ports *ports);

#endif
