/* The hosts of the cluster as this one sees them. */
#ifndef PBEAMD_TRANSPORT_HOST_H
#define PBEAMD_TRANSPORT_HOST_H

#include "pbeamd/transport/cluster.h"

struct host *host_find(struct cluster *cluster, const char *name);
/* As host_find(), and makes a host that is not known. NULL without memory. */
struct host *host_get(struct cluster *cluster, const char *name);
void host_forget(struct cluster *cluster, struct host *host);
/* The host has sent this description, which is taken. */
void host_heard(struct host *host, Pbeam__HostInfo *info);
bool host_is_up(const struct host *host);
/* The address that a description has; false if the host does not listen. */
bool host_listens(const Pbeam__HostInfo *info, char address[CLUSTER_ADDRESS_MAX]);
/* The address where it listens, or -EHOSTUNREACH. */
must_check int host_address(const struct cluster *cluster, const struct host *host,
			    char address[CLUSTER_ADDRESS_MAX], struct err *err);
/* Delays the next connection to a host that has refused one. */
void host_dial_later(struct cluster *cluster, const char *name);

#endif
