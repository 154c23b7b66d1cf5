/* Functions that the files of the TCP kind share, and that scip/ends uses. */
#ifndef SCIP_OBJECT_TCP_SOCKET_H
#define SCIP_OBJECT_TCP_SOCKET_H

#include "scip/object/object.h"

/* Waits until everything that this end has sent is in its receiver's queue. `peer` is the other end's
 * descriptor, or -1. 0, or -EAGAIN if the receiver has no room. */
int tcp_drain(int fd, int peer);
/* Sends what Nagle's algorithm or TCP_CORK holds back. */
void tcp_push(int fd);
/* Copies the first `len` bytes of the receive queue, which keeps them. The caller frees *data, also after an
 * error. */
must_check int tcp_peek(int fd, size_t len, char **data, struct err *err);
/* Makes room for `bytes` in the receive queue, 0 for as much as possible. A buffer size that the program has
 * not set stays unset. */
void tcp_grow_receive(int fd, uint64_t bytes);

/* Records what clients that wait at this listener have sent (TcpSocket.sent). They wait as before. */
must_check int tcp_take_pending(struct object_dump *dump, const struct object_source *listener,
				struct err *err);

/* -ENOTSUP for a connection with kernel TLS. */
must_check int tcp_refuse_tls(int fd, struct err *err);
/* Dumps an end with its options and receive queue, for a caller that takes care of the peer. Drains nothing.
 */
must_check int tcp_dump_end(struct object_dump *dump, const struct object_source *source,
			    Pbeam__Object *object, struct err *err);

/* Stores the record's names, if they differ from the socket's addresses: getsockname() and getpeername()
 * return them. */
must_check int tcp_keep_name(struct names *names, const Pbeam__TcpSocket *saved, int fd, struct err *err);
/* Records the socket's names, if they differ from its addresses. */
must_check int tcp_dump_name(struct names *names, Pbeam__TcpSocket *out);

int tcp_check(struct object_restore *restore, const Pbeam__Object *object, struct err *err);
int tcp_restore(struct object_restore *restore, const Pbeam__Object *object, int *fd, struct err *err);
int tcp_take_over(struct object_restore *restore, const Pbeam__Object *object, int fd, struct err *err);
int tcp_finish(struct object_restore *restore, const Pbeam__Object *object, int fd, struct err *err);
extern const struct object_end_ops tcp_end;

#endif
