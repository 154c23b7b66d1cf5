/* What a TCP socket is, and where its other end is: asked by all that save or move one. */
#ifndef SCIP_OBJECT_TCP_LOOK_H
#define SCIP_OBJECT_TCP_LOOK_H

#include "base/err.h"
#include "scip/object/inet.h"
#include "scip/object/object.h"

enum tcp_kind {
	TCP_KIND_IDLE, /* never connected; may be bound */
	TCP_KIND_LISTENS,
	TCP_KIND_CALLS,	    /* there is no reply yet */
	TCP_KIND_CONNECTED, /* has another end; either may have shut down its side, not both for good */
	TCP_KIND_ENDED,	    /* was connected; both have closed it, or there was an error: nothing comes */
};

/* In `shutdown`, and in TcpSocket.shutdown, beside 1 (nothing more is received) and 2 (nothing more is sent):
 * there is an error that the program has not read. Of a record also: the other end was outside. It is made,
 * and reset. */
#define TCP_SHUTDOWN_LOST 4u

struct tcp_look {
	enum tcp_kind kind;
	uint8_t state; /* TCP_* of the kernel */
	uint8_t shutdown;
	uint32_t backlog;	       /* of one that listens */
	struct inet_address own, peer; /* peer.len 0: of one that is idle or listens */
};

/* Looks at it: all that *look says was so at one moment. -errno. The socket is any process's; it may go on
 * meanwhile, and while its holders are frozen: see tcp_look.c. */
must_check int tcp_look(int fd, struct tcp_look *look, struct err *err);
bool tcp_is_socket(const struct object_source *source);
/* True of a state (TCP_*) in which all has come that the other end will ever send. */
bool tcp_fin_received(unsigned state);
/* True of a record's state: TCP_KIND_CONNECTED. */
bool tcp_was_connected(const Pbeam__TcpSocket *saved);

/* All that the group has, as they were when one of them was asked for first. Inside of a dump. */
struct tcp_table {
	struct tcp_known *v;
	size_t n;
	size_t sources; /* that were looked at */
};
void tcp_table_free(struct tcp_table *table);

/* What this one is; a connection is looked at again, the others stay what they were. NULL: it is no TCP
 * socket, or cannot be looked at. */
const struct tcp_look *tcp_look_of(struct object_dump *dump, const struct object_source *source);
/* The group's socket that is the other end of `own`, or NULL. */
const struct object_source *tcp_find_peer(struct object_dump *dump, const struct object_source *own);
/* The one of the group that listens at this address, or NULL. */
const struct object_source *tcp_find_listener(struct object_dump *dump, const struct inet_address *at);

enum tcp_place {
	TCP_PEER_IN_GROUP,
	TCP_PEER_WAITS,	  /* in the accept queue of one of the group */
	TCP_PEER_GONE,	  /* no process has it, and nothing comes from it any more */
	TCP_PEER_OUTSIDE, /* of a process outside */
};
struct tcp_other {
	enum tcp_place place;
	const struct object_source *source; /* IN_GROUP: it; WAITS: the listener */
	uint32_t queued;		    /* WAITS: bytes that have come there */
};
/* Where the other end of a connection of the group is. */
struct tcp_other tcp_find_other(struct object_dump *dump, const struct object_source *own);

#endif
