/* What the socket kinds have in common: options, sock_diag, queues. */
#ifndef SCIP_OBJECT_SOCKET_H
#define SCIP_OBJECT_SOCKET_H

#include <sys/socket.h>

#include "scip/object/object.h"

/* One integer option, or `fallback` where there is none. */
int socket_option(int fd, int level, int name, int fallback);
bool socket_is(const struct object_source *source, int domain, int type);

/* The options that differ from a fresh socket of the same kind. */
must_check int socket_options_dump(int fd, Pbeam__SocketOptions **out, struct err *err);
must_check int socket_options_restore(const Pbeam__SocketOptions *options, int fd, struct err *err);
bool socket_options_include(const Pbeam__SocketOptions *list, int level, int name);
/* The same for a socket in use: the options that the list lacks become those of a new socket. */
must_check int socket_options_renew(const Pbeam__SocketOptions *list, int fd, struct err *err);

/* Room for a whole queue: SO_SNDBUF up to its limit while it is refilled, then as it was. */
struct socket_room {
	int fd, sndbuf, lock;
};
struct socket_room socket_room_make(int fd);
void socket_room_restore(const struct socket_room *room);

/* Looks at everything in the receive queue without taking it (MSG_PEEK with SO_PEEK_OFF), passed descriptors
 * and, where the socket requests them, credentials included. `stream`: pieces end where the kernel ends
 * them. */
must_check int socket_queue_dump(struct object_dump *dump, int fd, bool stream, size_t *n,
				 Pbeam__Datagram ***queue, struct err *err);
/* After a dump that found empty datagrams: makes them visible to the next one. `peer` is the other end of a
 * pair, -1 if there is none or it cannot send. */
must_check int socket_queue_renew(struct object_dump *dump, int fd, int peer, size_t n,
				  Pbeam__Datagram *const *queue, struct err *err);
/* Sends one piece through `fd`, to `to` if that is not NULL, with its descriptors. Never blocks. */
must_check int socket_queue_send(struct object_restore *restore, const Pbeam__Datagram *piece, int fd,
				 bool stream, const struct sockaddr *to, socklen_t to_len, struct err *err);

/* Stores the names that the name table has for the socket, where they differ from the kernel's. -ENOMEM. */
must_check int socket_dump_name(struct names *names, uint64_t ino, ProtobufCBinaryData *own,
				ProtobufCBinaryData *peer, char **host);
/* Addresses as bytes; empty for none. */
must_check int socket_name(int fd, bool peer, ProtobufCBinaryData *out, struct err *err);

#endif
