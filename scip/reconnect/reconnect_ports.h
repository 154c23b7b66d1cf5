/*
 * UDP ports that leave, in the source's coordinator: who is connected to them, and what each is connected to,
 * is held by `scip reconnect` on the hosts of these (callers.h) and led to the new place at the commit.
 *
 * One that is connected goes without a bridge (`direct`) if the socket at its peer's address is held: that
 * one hears its name, by connect() and the kernel's filter or by a filter of ours. Of all others the bridge
 * of the port (scip/bridge/bridge_port.c) is told who needs it no more.
 */
#ifndef SCIP_RECONNECT_PORTS_H
#define SCIP_RECONNECT_PORTS_H

#include "proto/reconnect.pb-c.h"
#include "scip/ends/external.h"
#include "scip/object/inet.h"

struct reconnect_port {
	uint64_t ino;
	struct inet_address own, peer; /* real ones; peer of len 0: not connected */
	bool alone;		       /* no other socket has its name: that can be looked for */
	bool direct;
	ProtobufCBinaryData *callers; /* sockets that are connected to it, and held */
	size_t ncallers;
};
struct reconnect_ports {
	struct reconnect_port *v;
	size_t n;
	uint64_t *group; /* sockets of the group */
	size_t ngroup;
	struct inet_address host; /* where they go */
};

/* While they run: the job has such sockets. */
bool reconnect_ports_any(struct migrate_source *source);
/* Frozen: the bound UDP sockets of the group that are not connected with each other. */
must_check int reconnect_ports_find(struct reconnect_ports *ports, struct migrate_source *source,
				    struct object_dump *dump, struct err *err);
/* Those with `wanted[i]` stay in the list. */
void reconnect_ports_keep(struct reconnect_ports *ports, const bool *wanted);
/* HOLD. `hosts`: the first is this one. -ENOMEM. */
must_check int reconnect_ports_describe(const struct reconnect_ports *ports,
					const struct migrate_source *source, const Pbeam__HostList *hosts,
					Pbeam__ReconnectRequest *request);
/* What one host has said. How many it holds sockets of, or -ENOMEM. */
must_check int reconnect_ports_take(struct reconnect_ports *ports, const Pbeam__ReconnectReply *reply);
/* LEAD: all have arrived (source->addresses). */
must_check int reconnect_ports_lead(const struct reconnect_ports *ports, const struct migrate_source *source,
				    Pbeam__ReconnectRequest *request, struct err *err);
/* As a provider's dump, of those that go without a bridge. */
must_check int reconnect_ports_dump(const struct reconnect_ports *ports, struct migrate_source *source,
				    struct object_dump *dump, const struct object_source *of,
				    Pbeam__Object *out, struct err *err);
/* NULL: it is none of them. */
const struct reconnect_port *reconnect_ports_of(const struct reconnect_ports *ports, uint64_t ino);
void reconnect_ports_free(struct reconnect_ports *ports);

#endif
