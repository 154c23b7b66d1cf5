#ifndef PBEAMD_REGISTRY_REGISTRY_REMOTE_H
#define PBEAMD_REGISTRY_REGISTRY_REMOTE_H

#include "namespace/registry.h"
#include "pbeamd/transport/cluster.h"

must_check int registry_remote_open(struct registry *out, struct cluster *cluster, struct err *err);
/* Handle the central daemon's replies (false: malformed) and changes. */
bool registry_remote_reply(struct registry *remote, const struct frame *frame);
void registry_remote_changes(struct registry *remote, const Pbeam__RegistryChanges *changes);
/* The channel to the central daemon has ended: open requests end with -ECONNRESET. */
void registry_remote_lost(struct registry *remote);

#endif
