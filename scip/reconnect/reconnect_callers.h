/*
 * UDP peers of a migrated port: the sockets that are connected to the port, and the socket to which a
 * migrated connected socket is connected. They keep their kernel socket. connect() on a duplicate changes the
 * address to which it sends and from which it receives, and its queue stays.
 *
 *   source coordinator (reconnect_ports.h)              `scip reconnect` on each host
 *   ---------------------------------------------------------------------------------------------
 *   HOLD {ports, host} ------------------->   finds the sockets (sock_diag), freezes their holders,
 *                                             so that none sends to the old address; installs
 *                                             receive filters (SCIP_TRAP_DATAGRAMS) where the real
 *                                             address will differ from the name
 *   the queue is dumped; replies to held
 *   peers are direct (BridgeStream.direct)
 *   LEAD {addresses of the ports} -------->   stored
 *   COMMIT ------------------------------->   connect() to the new address, keeps the name
 *                                             (namespace/names_socket.c), thaws the holders
 *
 * Until COMMIT nothing changes for the peers. Peers that are not held go on through the port's bridge.
 */
#ifndef SCIP_RECONNECT_CALLERS_H
#define SCIP_RECONNECT_CALLERS_H

#include "proto/reconnect.pb-c.h"
#include "scip/reconnect/reconnect_hold.h"

/* One socket of this host that is a peer of a migrated port. */
struct reconnect_caller {
	uint64_t ino;
	int fd;	     /* our duplicate once it is held, or -1 */
	size_t port; /* index of HOLD's ports */
	bool connected;
	struct inet_address own, peer; /* real addresses */
	struct name_address former;    /* unconnected: the old address of the port; protocol 0: its name */
};
/* Datagrams that the port sent before the move have its old address as their source. */
struct reconnect_former {
	uint64_t ino; /* the socket */
	struct name_address name;
};
/* The new address of a port; len 0: unknown. `home`: the address is the port's name. */
struct reconnect_lead {
	struct inet_address to;
	bool home;
};
struct reconnect_callers {
	struct reconnect_caller *v;
	size_t n;
	struct reconnect_lead *leads; /* of each port */
	size_t nports;
	bool led;
	struct reconnect_former
		*formers; /* in the name table from the commit until reconnect_callers_end() */
	size_t nformers;
};

/* Finds the peers of request->ports; changes nothing yet. */
must_check int reconnect_callers_find(struct reconnect_callers *callers,
				      const Pbeam__ReconnectRequest *request, struct err *err);
/* Duplicates the sockets whose holders are frozen (`found[i]` for callers->v[i]), and lists them in `reply`.
 */
must_check int reconnect_callers_take(struct reconnect_callers *callers, struct reconnect_hold *hold,
				      const bool *found, const Pbeam__ReconnectRequest *request,
				      Pbeam__ReconnectReply *reply, struct err *err);
must_check int reconnect_callers_lead(struct reconnect_callers *callers,
				      const Pbeam__ReconnectRequest *request, struct err *err);
/* Connects the peers to the new address. A failure, by which the peer loses the port, is logged. */
void reconnect_callers_commit(struct reconnect_callers *callers, struct names *names);
void reconnect_callers_free(struct reconnect_callers *callers);
/* Frees after a commit, once datagrams queued before it have been read; waits a few seconds at most. */
void reconnect_callers_end(struct reconnect_callers *callers, struct names *names);

#endif
