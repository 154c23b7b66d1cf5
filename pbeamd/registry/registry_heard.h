#ifndef PBEAMD_REGISTRY_REGISTRY_HEARD_H
#define PBEAMD_REGISTRY_REGISTRY_HEARD_H

#include "namespace/registry.h"
#include "pbeamd/transport/cluster.h"

/* registry_carry_out() for a host (NULL: this one), answered once all hosts have heard of it where that
 * matters. `arg` is malloc'd if it is for a peer: freed without an answer when that is lost. */
void heard_carry_out(struct cluster *cluster, const Pbeam__RegistryRequest *request, const struct peer *peer,
		     registry_done_fn done, void *arg);
/* A host has heard of all up to `revision`. */
void heard_of(struct peer *peer, uint64_t revision);
/* The channel to a host ends: it is still in the list of hosts, and has no peer any more. */
void heard_lose(struct cluster *cluster, const struct peer *peer);
/* `done` is called once all hosts that are up have heard of all that is there now, or after a while. */
void heard_of_all(struct cluster *cluster, unsigned patience_ms, registry_done_fn done, void *arg);
/* All who wait are answered: with `why` (NULL: it is done). */
void heard_close(struct cluster *cluster, const struct err *why);

#endif
