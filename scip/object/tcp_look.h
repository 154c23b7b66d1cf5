/* Classifies TCP sockets and finds their other ends, for saving and moving them. */
#ifndef SCIP_OBJECT_TCP_LOOK_H
#define SCIP_OBJECT_TCP_LOOK_H

#include "base/err.h"
#include "scip/object/inet.h"
#include "scip/object/object.h"

enum tcp_kind {
	TCP_KIND_IDLE, /* never connected; may be bound */
	TCP_KIND_LISTENS,
	TCP_KIND_CALLS,	    /* its SYN has no reply yet */
	TCP_KIND_CONNECTED, /* has another end; not both have shut down for good */
	TCP_KIND_ENDED,	    /* was connected; both have closed, or an error: nothing arrives any more */
};

/* In `shutdown` and in TcpSocket.shutdown, beside 1 (receive side) and 2 (send side): an error that the
 * program has not read. In a record also: the other end was outside; the connection is restored as reset. */
#define TCP_SHUTDOWN_LOST 4u

struct tcp_look {
	enum tcp_kind kind;
	uint8_t state; /* the kernel's TCP_* */
	uint8_t shutdown;
	uint32_t backlog;	       /* of a listener */
	struct inet_address own, peer; /* peer.len 0: idle or listening */
};

/* Reads the socket's state as of one moment. 0 or -errno. The state may change at any time, also while the
 * socket's holders are frozen: see tcp_look.c. */
must_check int tcp_look(int fd, struct tcp_look *look, struct err *err);
bool tcp_is_socket(const struct object_source *source);
/* True for a state (TCP_*) in which the other end's FIN has been received. */
bool tcp_fin_received(unsigned state);
/* True for a record of a socket that was TCP_KIND_CONNECTED. */
bool tcp_was_connected(const Pbeam__TcpSocket *saved);

/* The looks at all TCP sockets of the group, made at the first question. Part of a dump. */
struct tcp_table {
	struct tcp_known *v;
	size_t n;
	size_t sources; /* number of sources examined */
};
void tcp_table_free(struct tcp_table *table);

/* Returns the look at this source. A connection is looked at again, as it may have ended. NULL: it is no TCP
 * socket, or its state cannot be read. */
const struct tcp_look *tcp_look_of(struct object_dump *dump, const struct object_source *source);
/* Returns the group's socket that is the other end of `own`, or NULL. */
const struct object_source *tcp_find_peer(struct object_dump *dump, const struct object_source *own);
/* Returns the group's listener at this address, or NULL. */
const struct object_source *tcp_find_listener(struct object_dump *dump, const struct inet_address *at);

enum tcp_place {
	TCP_PEER_IN_GROUP,
	TCP_PEER_WAITS,	  /* in the accept queue of a listener of the group */
	TCP_PEER_GONE,	  /* no process has it, and nothing arrives from it any more */
	TCP_PEER_OUTSIDE, /* held by a process outside */
};
struct tcp_other {
	enum tcp_place place;
	const struct object_source *source; /* IN_GROUP: the other end; WAITS: the listener */
	uint32_t queued;		    /* WAITS: bytes that have arrived there */
};
/* Finds the other end of a connection of the group. */
struct tcp_other tcp_find_other(struct object_dump *dump, const struct object_source *own);

#endif
