/* One end of a TCP connection whose holders are frozen: what it is, what its program has not read, and the
 * new socket that takes its place. */
#ifndef SCIP_RECONNECT_END_H
#define SCIP_RECONNECT_END_H

#include "base/err.h"
#include "scip/object/inet.h"

#define RECONNECT_COOKIE_SIZE 16

struct reconnect_end {
	int old;		       /* our duplicate of the socket as it was; -1 none */
	int fresh;		       /* the new one; -1 while there is none */
	uint64_t ino;		       /* of the old one */
	struct inet_address own, peer; /* real addresses of the old one */
	int family, flags;	       /* of the socket; F_GETFL */
	uint8_t state, shutdown;       /* TCP_*; 1: nothing more is received, 2: nothing more is sent */
	Pbeam__SocketOptions *options;
	int receive_buffer, receive_lock; /* as they were; draining enlarges the buffer */
	bool enlarged;
	char *unread; /* what is in the receive queue; it stays there */
	size_t unread_len;
	uint8_t cookie[RECONNECT_COOKIE_SIZE];
};

void reconnect_end_init(struct reconnect_end *end);
/* Takes `fd` over and reads what there is to know of it. -ENOTSUP for what cannot be made anew. */
must_check int reconnect_end_take(struct reconnect_end *end, int fd, struct err *err);
/* What is in an end's queues. */
struct reconnect_level {
	uint64_t waiting; /* bytes sent (a FIN counts as one) that are not in the other end's queue yet */
	uint64_t queued;  /* in its own receive queue */
	uint64_t room;	  /* that the receive queue can hold at most */
};
/* Makes what this end has sent move on, and room for what the other end sends; `round` counts up from 0,
 * whose only effect is to look. */
struct reconnect_level reconnect_end_drain(struct reconnect_end *end, unsigned round);
/* True if all that `sender` has sent has room in the receiver's queue: else nothing should be moved there. */
bool reconnect_fits(const struct reconnect_level *sender, const struct reconnect_level *receiver);
/* Makes rounds, at most 500 ms without progress, until nothing is on its way: `round` (number n, from 0) says
 * in *waiting how many bytes are. -EBUSY: they do not arrive. */
must_check int reconnect_drain(int (*round)(void *arg, unsigned n, uint64_t *waiting, struct err *err),
			       void *arg, struct err *err);
/* Both ends are drained: looks at the receive queue, and at what the end is by now. */
must_check int reconnect_end_look(struct reconnect_end *end, struct err *err);
/* The new socket is connected with the other end's new one, and the cookie has been sent. Both ends exchange
 * what was not read and send it again. Sets options, flags and half-closed directions. `connected`: this end
 * has connected, and sends first. */
must_check int reconnect_end_fill(struct reconnect_end *end, bool connected, struct err *err);
/* The receive buffer's size as it was, and whether the program has chosen it. */
void reconnect_end_put_buffer(const struct reconnect_end *end, int fd);
/* Makes a new socket, connects it to `address` (struct sockaddr_in or sockaddr_in6), sends the cookie, fills
 * it. */
must_check int reconnect_end_connect(struct reconnect_end *end, const ProtobufCBinaryData *address,
				     struct err *err);
/* The old connection ends here without a word to the other end. */
void reconnect_end_drop_old(struct reconnect_end *end);
/* Closes everything; what draining has changed in the old socket is put back. */
void reconnect_end_free(struct reconnect_end *end);

#endif
