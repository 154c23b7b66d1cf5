#ifndef PBEAMD_REGISTRY_REGISTRY_NAMES_H
#define PBEAMD_REGISTRY_REGISTRY_NAMES_H

#include "namespace/registry.h"
#include "pbeamd/transport/cluster.h"

/* Enters an entry's content in the name table. */
void registry_names_seen(struct cluster *cluster, const Pbeam__RegistryEntry *entry);
/* After the first complete copy: removes from the name table everything that has no entry any more. */
void registry_names_settle(struct cluster *cluster);

#endif
