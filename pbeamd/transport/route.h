/* Channels for local programs. */
#ifndef PBEAMD_TRANSPORT_ROUTE_H
#define PBEAMD_TRANSPORT_ROUTE_H

#include "pbeamd/transport/cluster.h"

/* A channel that another host (or this one) has opened goes to whom it is for; the welcome is said here.
 * Takes `fd`. */
must_check int route_channel(struct cluster *cluster, int fd, const Pbeam__ChannelHello *hello,
			     const char *address, struct err *err);
int handle_channel(struct connection *connection, const ProtobufCMessage *message, struct err *err);
int handle_expect(struct connection *connection, const ProtobufCMessage *message, struct err *err);

#endif
