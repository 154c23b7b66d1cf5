#ifndef PBEAMD_REGISTRY_STALE_JOBS_H
#define PBEAMD_REGISTRY_STALE_JOBS_H

#include "namespace/registry.h"
#include "pbeamd/transport/cluster.h"

/* The central host has become unreachable, or was so until this daemon started. */
void stale_jobs_away(struct cluster *cluster);
/* The copy of the registry is whole again: looks for stale jobs. */
void stale_jobs_look(struct cluster *cluster);
void stale_jobs_tick(struct cluster *cluster, uint64_t now_ns);
void stale_jobs_forget(struct cluster *cluster);

#endif
