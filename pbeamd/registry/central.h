/* Which host is the central one. */
#ifndef PBEAMD_REGISTRY_CENTRAL_H
#define PBEAMD_REGISTRY_CENTRAL_H

#include "pbeamd/transport/cluster.h"

/* Opens the store, and determines the central host from it and from the command line. */
must_check int central_open(struct cluster *cluster, struct err *err);
/* Fills in which host is central. */
must_check int central_describe(const struct cluster *cluster, Pbeam__HostInfo *self);
/* -EINVAL if a host with this description is of another cluster. */
must_check int central_check(const struct peer *peer, const Pbeam__HostInfo *info, struct err *err);
/* Takes another host's description, which may have a later term: then this host follows. */
void central_heard(struct peer *peer, const Pbeam__HostInfo *info);
/* Makes this host central, by `state`, which is already in the store. */
void central_become(struct cluster *cluster, const struct registry_state *state);

#endif
