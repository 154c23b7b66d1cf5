/* Between tcp.c, tcp_drain.c and tcp_restore.c. */
#ifndef SCIP_OBJECT_TCP_SOCKET_H
#define SCIP_OBJECT_TCP_SOCKET_H

#include "scip/object/object.h"

/* All that this end has sent is in its receiver's queue afterwards. `peer` is the other end's descriptor, -1
 * when it is nobody's. 0, or -EAGAIN when the receiver has no room. */
int tcp_drain(int fd, int peer);
/* What Nagle's algorithm or a cork holds back goes out. */
void tcp_push(int fd);
/* The first `len` bytes that wait to be read, malloc'd also where it fails; they stay in the queue. */
must_check int tcp_peek(int fd, size_t len, char **data, struct err *err);
/* Room for `bytes` in the receive queue (0: as much as there can be), without locking the buffer's size if it
 * is not.
 */
void tcp_grow_receive(int fd, uint64_t bytes);

/* Finds out what the clients that wait at this listener have sent (TcpSocket.sent); they wait as before. */
must_check int tcp_take_pending(struct object_dump *dump, const struct object_source *listener,
				struct err *err);

/* -ENOTSUP for a connection with kernel TLS. */
must_check int tcp_refuse_tls(int fd, struct err *err);
/* For who cares for the peer: an end with its options and its receive queue. Nothing is drained. */
must_check int tcp_dump_end(struct object_dump *dump, const struct object_source *source,
			    Pbeam__Object *object, struct err *err);

/* Where its record has names that are not the addresses that it has now: getsockname and getpeername will say
 * them. */
must_check int tcp_keep_name(struct names *names, const Pbeam__TcpSocket *saved, int fd, struct err *err);
/* The names that it goes by, into its record, if they are not its addresses. */
must_check int tcp_dump_name(struct names *names, Pbeam__TcpSocket *out);

int tcp_check(struct object_restore *restore, const Pbeam__Object *object, struct err *err);
int tcp_restore(struct object_restore *restore, const Pbeam__Object *object, int *fd, struct err *err);
int tcp_finish(struct object_restore *restore, const Pbeam__Object *object, int fd, struct err *err);
extern const struct object_end_ops tcp_end;

#endif
