/* The description of this host that others get. */
#ifndef PBEAMD_TRANSPORT_HOST_INFO_H
#define PBEAMD_TRANSPORT_HOST_INFO_H

#include "pbeamd/transport/cluster.h"

/* A new description. The caller frees it with message_free(). NULL without memory. */
Pbeam__HostInfo *host_info_new(const struct cluster *cluster);
/* Updates the part that changes. */
void host_info_refresh(const struct cluster *cluster, Pbeam__HostInfo *info);

#endif
