/*
 * One end of a TCP connection whose holders are frozen, and the new socket that replaces it. The strategies
 * lead the ends: scip/reconnect takes one end along and leaves the other, scip/rejoin connects two parts of a
 * cut again. Each end goes through the same steps:
 *
 *   look     end_tcp_is_external(), end_tcp_take()
 *   drain    end_tcp_drain() on both ends in turn, until nothing is in flight
 *   take     end_tcp_look(), end_tcp_record(): the queue is copied, the kernel keeps it
 *   refill   on a new connection: end_tcp_fill(), or end_tcp_restore() for an end that was recorded
 *   install  the strategy puts the new socket in place of the old one; end_tcp_drop_old()
 *
 * Nothing is taken out of the old connection, so end_tcp_free() undoes everything up to the last step.
 */
#ifndef SCIP_ENDS_END_TCP_H
#define SCIP_ENDS_END_TCP_H

#include "base/err.h"
#include "proto/reconnect.pb-c.h"
#include "scip/ends/acceptor.h"
#include "scip/object/inet.h"
#include "scip/object/object.h"

struct end_tcp {
	int old;		       /* our duplicate of the old socket, or -1 */
	int fresh;		       /* the new socket, or -1 */
	uint64_t ino;		       /* of the old socket */
	struct inet_address own, peer; /* real addresses of the old socket */
	int family, flags;	       /* AF_INET or AF_INET6; F_GETFL */
	uint8_t state, shutdown;       /* TCP_*; 1: receive side closed, 2: send side closed */
	Pbeam__SocketOptions *options;
	int receive_buffer, receive_lock; /* original values; draining enlarges the buffer */
	bool enlarged;
	char *unread; /* copy of the receive queue, which keeps its data */
	size_t unread_len;
	uint8_t cookie[ACCEPTOR_COOKIE_SIZE];
};

void end_tcp_init(struct end_tcp *end);
/* True for a connection whose other end is not in the group; stores its addresses in `end`. */
bool end_tcp_is_external(struct object_dump *dump, const struct object_source *of, struct end_tcp *end);
/* Takes ownership of `fd` and reads its state. -ENOTSUP if it cannot be made again. */
must_check int end_tcp_take(struct end_tcp *end, int fd, struct err *err);

/* Fill levels of an end's queues, in bytes. */
struct end_tcp_level {
	uint64_t waiting; /* sent, not yet in the other end's queue; a FIN counts as one */
	uint64_t queued;  /* in its own receive queue */
	uint64_t room;	  /* capacity of the receive queue */
};
/* Pushes what this end has sent, and makes room for what the other end sends. `round` counts up from 0; round
 * 0 only looks. */
struct end_tcp_level end_tcp_drain(struct end_tcp *end, unsigned round);
/* True if the receiver's queue has room for everything that `sender` has sent. */
bool end_tcp_fits(const struct end_tcp_level *sender, const struct end_tcp_level *receiver);
/* Calls `round` with n = 0, 1, ... until nothing is in flight; *waiting is the number of bytes in flight.
 * -EBUSY after 500 ms without progress. */
must_check int end_tcp_drain_all(int (*round)(void *arg, unsigned n, uint64_t *waiting, struct err *err),
				 void *arg, struct err *err);

/* Reads the receive queue and the end's state again, once both ends are drained. */
must_check int end_tcp_look(struct end_tcp *end, struct err *err);
/* Dumps a drained end, with the options it had before draining. Moves end->options into `out`. */
must_check int end_tcp_record(struct object_dump *dump, struct end_tcp *end, Pbeam__Object *out,
			      struct err *err);

/* Returns the ticket in the record of an external object, which the caller frees. NULL: it is no TCP socket,
 * or its record is malformed (-EBADMSG). */
Pbeam__ReconnectTicket *end_tcp_ticket(const Pbeam__Object *object, struct err *err);
/* Connects a new TCP socket to `address` (struct sockaddr_in or sockaddr_in6) and sends the cookie. */
must_check int end_tcp_connect(int sock, const ProtobufCBinaryData *address,
			       const uint8_t cookie[ACCEPTOR_COOKIE_SIZE], struct err *err);
/* Fills the new socket, which is connected to the other end's new socket and proven by the cookie. The ends
 * exchange their unread data and send it again. Sets options, flags and half-closed directions. `connected`:
 * this end has connected, and sends first. */
must_check int end_tcp_fill(struct end_tcp *end, bool connected, struct err *err);
/* The same for the new socket `fd` of the end that `object` records; keeps its names. `ticket` has the size
 * of the receive buffer. */
must_check int end_tcp_restore(struct names *names, struct object_restore *restore,
			       const Pbeam__Object *object, const Pbeam__ReconnectTicket *ticket, int fd,
			       bool connected, struct err *err);
/* The exchange of unread data within end_tcp_fill() (end_tcp_exchange.c). */
must_check int end_tcp_exchange(struct end_tcp *end, bool connected, struct err *err);

/* Closes the old connection without a packet to the other end. */
void end_tcp_drop_old(struct end_tcp *end);
/* Undoes what draining changed in the old socket, and closes both sockets. */
void end_tcp_free(struct end_tcp *end);

#endif
