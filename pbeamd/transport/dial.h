#ifndef PBEAMD_TRANSPORT_DIAL_H
#define PBEAMD_TRANSPORT_DIAL_H

#include "pbeamd/transport/cluster.h"

/* Connects to the hosts that are due. Never blocks. */
void dial_tick(struct cluster *cluster, uint64_t now_ns);

#endif
