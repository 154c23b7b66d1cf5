#ifndef PBEAMD_REGISTRY_REGISTRY_SETTLED_H
#define PBEAMD_REGISTRY_REGISTRY_SETTLED_H

#include "namespace/registry.h"
#include "pbeamd/transport/cluster.h"

/* Removes the records of migrations that no process can need any more. */
void settled_tick(struct cluster *cluster, uint64_t now_ns);

#endif
