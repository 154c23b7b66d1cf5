/* One end of a TCP connection whose holders are frozen: its state, its unread data, and the new socket that
 * replaces it. */
#ifndef SCIP_RECONNECT_END_H
#define SCIP_RECONNECT_END_H

#include "base/err.h"
#include "scip/ends/acceptor.h"
#include "scip/object/inet.h"

struct reconnect_end {
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

void reconnect_end_init(struct reconnect_end *end);
/* Takes ownership of `fd` and reads its state. -ENOTSUP if it cannot be made again. */
must_check int reconnect_end_take(struct reconnect_end *end, int fd, struct err *err);
/* Fill levels of an end's queues, in bytes. */
struct reconnect_level {
	uint64_t waiting; /* sent, not yet in the other end's queue; a FIN counts as one */
	uint64_t queued;  /* in its own receive queue */
	uint64_t room;	  /* capacity of the receive queue */
};
/* Pushes what this end has sent, and makes room for what the other end sends. `round` counts up from 0; round
 * 0 only looks. */
struct reconnect_level reconnect_end_drain(struct reconnect_end *end, unsigned round);
/* True if the receiver's queue has room for everything that `sender` has sent. */
bool reconnect_fits(const struct reconnect_level *sender, const struct reconnect_level *receiver);
/* Calls `round` with n = 0, 1, ... until nothing is in flight; *waiting is the number of bytes in flight.
 * -EBUSY after 500 ms without progress. */
must_check int reconnect_drain(int (*round)(void *arg, unsigned n, uint64_t *waiting, struct err *err),
			       void *arg, struct err *err);
/* Reads the receive queue and the end's state again, once both ends are drained. */
must_check int reconnect_end_look(struct reconnect_end *end, struct err *err);
/* Fills the new socket, which is connected to the other end's new socket and proven by the cookie. The ends
 * exchange their unread data and send it again. Sets options, flags and half-closed directions. `connected`:
 * this end has connected, and sends first. */
must_check int reconnect_end_fill(struct reconnect_end *end, bool connected, struct err *err);
/* Restores the receive buffer's size, and whether the program has set it. */
void reconnect_end_put_buffer(const struct reconnect_end *end, int fd);
/* Makes a new socket, connects it to `address` (struct sockaddr_in or sockaddr_in6), sends the cookie and
 * fills the socket. */
must_check int reconnect_end_connect(struct reconnect_end *end, const ProtobufCBinaryData *address,
				     struct err *err);
/* Closes the old connection without a packet to the other end. */
void reconnect_end_drop_old(struct reconnect_end *end);
/* Undoes what draining changed in the old socket, and closes both sockets. */
void reconnect_end_free(struct reconnect_end *end);

#endif
