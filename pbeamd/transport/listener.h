/*
 * A listening socket in the event loop that survives a lack of descriptors.
 *
 * poll(2) and epoll(7) report a pending connection for as long as nobody accepts it, so an accept(2) that
 * fails with EMFILE is tried again at once, for ever. A listener keeps one spare descriptor: it accepts with
 * that, tells the client, closes both, and then leaves the socket alone for a while.
 */
#ifndef PBEAMD_TRANSPORT_LISTENER_H
#define PBEAMD_TRANSPORT_LISTENER_H

#include "base/err.h"

struct event_base;
struct listener;

struct listener_calls {
	/* Accepts a connection. Returns the descriptor, or -errno with the error set. */
	int (*accept)(int socket, struct err *err);
	/* Takes ownership of an accepted connection. */
	void (*take)(void *arg, int fd);
	/* Tells a client why its connection ends; the caller closes `fd`. May be NULL. */
	void (*refuse)(int fd, const struct err *why);
};

/* Serves the listening, non-blocking `socket`, which stays the caller's. -ENOMEM, -EMFILE. */
must_check int listener_open(struct listener **out, struct event_base *base, int socket,
			     const struct listener_calls *calls, void *arg, struct err *err);
/* No effect on NULL. */
void listener_close(struct listener *listener);

#endif
