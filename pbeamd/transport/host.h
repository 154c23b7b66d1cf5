/* The hosts of the cluster as this one sees them. */
#ifndef PBEAMD_TRANSPORT_HOST_H
#define PBEAMD_TRANSPORT_HOST_H

#include "pbeamd/transport/cluster.h"

struct host *host_find(struct cluster *cluster, const char *name);
/* The same, made if it is not known. NULL without memory. */
struct host *host_get(struct cluster *cluster, const char *name);
void host_forget(struct cluster *cluster, struct host *host);
/* Takes the info. */
void host_heard(struct host *host, Pbeam__HostInfo *info);
bool host_is_up(const struct host *host);
/* "ADDRESS:PORT" of one that says where it listens; false: it does not. */
bool host_listens(const Pbeam__HostInfo *info, char address[CLUSTER_ADDRESS_MAX]);
/* Where it listens, or -EHOSTUNREACH with a sentence. */
must_check int host_address(const struct cluster *cluster, const struct host *host,
			    char address[CLUSTER_ADDRESS_MAX], struct err *err);
/* One that was reached and refused: not again at once. */
void host_dial_later(struct cluster *cluster, const char *name);

#endif
