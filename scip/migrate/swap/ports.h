/*
 * UDP ports that leave, in the source's coordinator: who is connected to them, and what each is connected to,
 * is held by `scip swap` on the hosts of these (callers.h) and led to the new place at the commit.
 *
 * One that is connected goes without a bridge (`direct`) if the socket at its peer's address is held: that
 * one hears its name, by connect() and the kernel's filter or by a filter of ours. Of all others the bridge
 * of the port (scip/migrate/bridge/port.c) is told who needs it no more.
 */
#ifndef SCIP_MIGRATE_SWAP_PORTS_H
#define SCIP_MIGRATE_SWAP_PORTS_H

#include "proto/swap.pb-c.h"
#include "scip/migrate/external.h"
#include "scip/object/inet.h"

struct swap_port {
	uint64_t ino;
	struct inet_address own, peer; /* real ones; peer of len 0: not connected */
	bool alone;		       /* no other socket has its name: that can be looked for */
	bool direct;
	ProtobufCBinaryData *callers; /* sockets that are connected to it, and held */
	size_t ncallers;
};
struct swap_ports {
	struct swap_port *v;
	size_t n;
	uint64_t *group; /* sockets of the group */
	size_t ngroup;
	struct inet_address host; /* where they go */
};

/* While they run: the job has such sockets. */
bool swap_ports_any(struct migrate_source *source);
/* Frozen: the bound UDP sockets of the group that are not connected with each other. */
must_check int swap_ports_find(struct swap_ports *ports, struct migrate_source *source,
			       struct object_dump *dump, struct err *err);
/* Those with `wanted[i]` stay in the list. */
void swap_ports_keep(struct swap_ports *ports, const bool *wanted);
/* HOLD. `hosts`: the first is this one. -ENOMEM. */
must_check int swap_ports_describe(const struct swap_ports *ports, const struct migrate_source *source,
				   const Pbeam__HostList *hosts, Pbeam__SwapRequest *request);
/* What one host has said. How many it holds sockets of, or -ENOMEM. */
must_check int swap_ports_take(struct swap_ports *ports, const Pbeam__SwapReply *reply);
/* LEAD: all have arrived (source->addresses). */
must_check int swap_ports_lead(const struct swap_ports *ports, const struct migrate_source *source,
			       Pbeam__SwapRequest *request, struct err *err);
/* As a provider's dump, of those that go without a bridge. */
must_check int swap_ports_dump(const struct swap_ports *ports, struct migrate_source *source,
			       struct object_dump *dump, const struct object_source *of, Pbeam__Object *out,
			       struct err *err);
/* NULL: it is none of them. */
const struct swap_port *swap_ports_of(const struct swap_ports *ports, uint64_t ino);
void swap_ports_free(struct swap_ports *ports);

#endif
