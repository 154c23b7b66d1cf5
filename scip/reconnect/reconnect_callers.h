/*
 * UDP sockets that a port that moves leaves behind: those that are connected to it, and of a connected one
 * the socket that it is connected to. They are told where it is, and nothing of theirs is made anew:
 * connect() on a duplicate changes whom the kernel socket sends to and hears, and what waits in its queue
 * stays.
 *
 *   source coordinator (ports.h)              `scip reconnect` on each host
 *   ---------------------------------------------------------------------------------------------
 *   HOLD {ports, host} ------------------->   finds the sockets (sock_diag), freezes who holds them, so that
 *                                             nobody sends to the old place any more; filters for those who
 *                                             will hear another address than the name (SCIP_HEAR)
 *   the queue goes along; who is held is
 *   answered directly (BridgeLine.direct)
 *   LEAD {where the ports are} ----------->   kept
 *   COMMIT ------------------------------->   connect() to the new place, the name is kept
 *                                             (namespace/names_socket.c), the holders go on
 *
 * Until COMMIT nothing has changed for them; who is not held goes on through the bridge of the port.
 */
#ifndef SCIP_RECONNECT_CALLERS_H
#define SCIP_RECONNECT_CALLERS_H

#include "proto/reconnect.pb-c.h"
#include "scip/reconnect/reconnect_hold.h"

/* One socket of this host that has to do with a port that moves. */
struct reconnect_caller {
	uint64_t ino;
	int fd;	     /* our duplicate, once it is held; else -1 */
	size_t port; /* index of HOLD's ports */
	bool connected;
	struct inet_address own, peer; /* real ones */
	struct name_address
		former; /* of one that is not connected: the port as it was; protocol 0: by its name */
};
/* What the port has sent to a socket before it moved is from where it was. */
struct reconnect_former {
	uint64_t ino; /* the socket */
	struct name_address name;
};
/* Where a port will be; len 0: not known. `home`: that is what it is called. */
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
	struct reconnect_former *formers; /* in the name table, from the commit to reconnect_callers_end() */
	size_t nformers;
};

/* Those that there are for request->ports, of which nothing is done yet. */
must_check int reconnect_callers_find(struct reconnect_callers *callers,
				      const Pbeam__ReconnectRequest *request, struct err *err);
/* The holders of some stand still: `found[i]` says it of callers->v[i]. Takes these sockets, and says in
 * `reply` which. */
must_check int reconnect_callers_take(struct reconnect_callers *callers, struct reconnect_hold *hold,
				      const bool *found, const Pbeam__ReconnectRequest *request,
				      Pbeam__ReconnectReply *reply, struct err *err);
must_check int reconnect_callers_lead(struct reconnect_callers *callers,
				      const Pbeam__ReconnectRequest *request, struct err *err);
/* What cannot be led is a line in the log: it has lost the port. */
void reconnect_callers_commit(struct reconnect_callers *callers, struct names *names);
void reconnect_callers_free(struct reconnect_callers *callers);
/* The same, some seconds after the commit at most: when what had waited until then has been read. */
void reconnect_callers_end(struct reconnect_callers *callers, struct names *names);

#endif
