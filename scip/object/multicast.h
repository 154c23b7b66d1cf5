/* Multicast memberships of UDP sockets. */
#ifndef SCIP_OBJECT_MULTICAST_H
#define SCIP_OBJECT_MULTICAST_H

#include "scip/object/object.h"

/* Fills out->memberships; out->family is set. The socket is as before. */
must_check int multicast_dump(int fd, Pbeam__UdpSocket *out, struct err *err);
/* Joins them again. -errno where the interface is not there. */
must_check int multicast_restore(const Pbeam__UdpSocket *saved, int fd, struct err *err);

#endif
