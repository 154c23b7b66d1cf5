/* Of UDP sockets, for the code that moves them. */
#ifndef SCIP_OBJECT_UDP_SOCKET_H
#define SCIP_OBJECT_UDP_SOCKET_H

#include "scip/object/object.h"

/* getsockname and getpeername will say what its record has. */
must_check int udp_keep_name(struct names *names, const Pbeam__UdpSocket *saved, int fd, struct err *err);

#endif
