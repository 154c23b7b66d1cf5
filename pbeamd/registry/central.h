/* Which host is the central one. */
#ifndef PBEAMD_REGISTRY_CENTRAL_H
#define PBEAMD_REGISTRY_CENTRAL_H

#include "pbeamd/transport/cluster.h"

/* Opens the store: who is central, as this host's last daemon knew it and the command line wants it. */
must_check int central_open(struct cluster *cluster, struct err *err);
/* Says so to the others. */
must_check int central_describe(const struct cluster *cluster, Pbeam__HostInfo *self);
/* -EINVAL if a host that says this is of another cluster. */
must_check int central_check(const struct peer *peer, const Pbeam__HostInfo *info, struct err *err);
/* What another host knows of it, which may be newer: then this one follows. */
void central_heard(struct peer *peer, const Pbeam__HostInfo *info);
/* This host is it from now on, by `state`, which is in the store. */
void central_become(struct cluster *cluster, const struct registry_state *state);

#endif
