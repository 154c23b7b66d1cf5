#ifndef PBEAMD_REGISTRY_REGISTRY_NAMES_H
#define PBEAMD_REGISTRY_REGISTRY_NAMES_H

#include "namespace/registry.h"
#include "pbeamd/transport/cluster.h"

/* What an entry says goes into the name table. */
void registry_names_seen(struct cluster *cluster, const Pbeam__RegistryEntry *entry);
/* After the first whole: what the table has of an earlier time and nobody says any more goes. */
void registry_names_settle(struct cluster *cluster);

#endif
