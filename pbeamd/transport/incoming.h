#ifndef PBEAMD_TRANSPORT_INCOMING_H
#define PBEAMD_TRANSPORT_INCOMING_H

#include "pbeamd/transport/cluster.h"

void incoming_accept(struct cluster *cluster, int tcp);
void incoming_close_all(struct cluster *cluster);
void incoming_leave_child(const struct cluster *cluster);

#endif
