/* The cluster half of pbeamd: opens, ticks and closes the layers. */
#ifndef PBEAMD_CLUSTER_LAYERS_H
#define PBEAMD_CLUSTER_LAYERS_H

#include "pbeamd/transport/cluster.h"

must_check int cluster_open(struct server *server, struct err *err);
void cluster_close(struct cluster *cluster);
/* The calls between the layers, for a cluster and for a host alone (server->alone). */
extern const struct cluster_calls cluster_calls;
/* In a child of the daemon: closes the cluster's descriptors. */
void cluster_leave_child(struct cluster *cluster);

#endif
