#ifndef PBEAMD_REGISTRY_REGISTRY_HEARD_H
#define PBEAMD_REGISTRY_REGISTRY_HEARD_H

#include "namespace/registry.h"
#include "pbeamd/transport/cluster.h"

/* registry_carry_out() for a peer (NULL: this host). For entries that all hosts must know, the reply waits
 * until they have the change. `arg` of a peer's request is malloc'd, and freed without a reply when the peer
 * is lost. */
void heard_carry_out(struct cluster *cluster, const Pbeam__RegistryRequest *request, const struct peer *peer,
		     registry_done_fn done, void *arg);
/* A host has all changes up to `revision`. */
void heard_of(struct peer *peer, uint64_t revision);
/* The channel to a host has ended. The host is still in the list and has no peer. */
void heard_lose(struct cluster *cluster, const struct peer *peer);
/* Calls `done` once all hosts that are up have all changes so far, or after `patience_ms`. */
void heard_of_all(struct cluster *cluster, unsigned patience_ms, registry_done_fn done, void *arg);
/* Ends all waits: with `why`, or with success (NULL). */
void heard_close(struct cluster *cluster, const struct err *why);

#endif
