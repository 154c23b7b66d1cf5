/* Channels for local programs. */
#ifndef PBEAMD_TRANSPORT_ROUTE_H
#define PBEAMD_TRANSPORT_ROUTE_H

#include "pbeamd/transport/cluster.h"

/* Passes a channel that a host (perhaps this one) has opened to its receiver, after the greeting. Takes
 * ownership of `fd`. */
must_check int route_channel(struct cluster *cluster, int fd, const Pbeam__ChannelHello *hello,
			     const char *address, struct err *err);
int handle_channel(struct connection *connection, const ProtobufCMessage *message, struct err *err);
int handle_expect(struct connection *connection, const ProtobufCMessage *message, struct err *err);

#endif
