/* Between tcp.c, tcp_drain.c and tcp_restore.c. */
#ifndef SCIP_OBJECT_TCP_SOCKET_H
#define SCIP_OBJECT_TCP_SOCKET_H

#include "scip/object/object.h"

/* In TcpSocket.shutdown beside 1 (receiving) and 2 (sending): the peer was outside; the connection is made
 * and reset. */
#define TCP_SHUTDOWN_LOST 4u

/* All that this end has sent is in its receiver's queue afterwards. `peer` is the other end's descriptor, -1
 * when it is nobody's. 0, or -EAGAIN when the receiver has no room. */
int tcp_drain(int fd, int peer);
/* Room for `bytes` in the receive queue, without locking the buffer's size if it is not. */
void tcp_grow_receive(int fd, uint64_t bytes);

/* Finds out what the clients that wait at this listener have sent (TcpSocket.sent); they wait as before. */
must_check int tcp_take_pending(struct object_dump *dump, const Pbeam__TcpSocket *listener, struct err *err);

int tcp_check(struct object_restore *restore, const Pbeam__Object *object, struct err *err);
int tcp_restore(struct object_restore *restore, const Pbeam__Object *object, int *fd, struct err *err);
int tcp_finish(struct object_restore *restore, const Pbeam__Object *object, int fd, struct err *err);

#endif
