/* Connections of local programs: one request at a time. */
#ifndef PBEAMD_TRANSPORT_CONNECTION_H
#define PBEAMD_TRANSPORT_CONNECTION_H

#include "pbeamd/transport/server.h"

/* Takes ownership of `fd` in every case. NULL without memory. */
struct connection *connection_open(struct server *server, int fd);
/* Closes it at once. */
void connection_close(struct connection *connection);
/* Queues a frame; descriptors are duplicated. */
void connection_send(struct connection *connection, uint32_t type, const ProtobufCMessage *message,
		     const int *fds, int nfds);
/* Queues a received frame and takes ownership of its descriptors. */
void connection_relay(struct connection *connection, struct frame *frame);
/* The final replies: the connection accepts requests again. */
void connection_reply(struct connection *connection, const ProtobufCMessage *message);
void connection_refuse(struct connection *connection, const struct err *err);

#endif
