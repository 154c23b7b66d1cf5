/* Addresses that have moved to this host. */
#ifndef PBEAMD_SERVICES_ADDRESSES_H
#define PBEAMD_SERVICES_ADDRESSES_H

#include "pbeamd/transport/cluster.h"

/* Removes the entries of addresses of this host that no socket is bound to any more. */
must_check int addresses_open(struct cluster *cluster, struct err *err);
void addresses_close(struct cluster *cluster);
void addresses_tick(struct cluster *cluster, uint64_t now_ns);

#endif
