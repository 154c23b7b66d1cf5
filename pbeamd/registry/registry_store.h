#ifndef PBEAMD_REGISTRY_REGISTRY_STORE_H
#define PBEAMD_REGISTRY_REGISTRY_STORE_H

#include "namespace/registry.h"
#include "pbeamd/transport/cluster.h"

must_check int registry_store_open(struct registry *out, struct err *err);
/* What is known of the central host: zeroes before that. */
must_check int registry_store_state(struct registry *store, struct registry_state *out, struct err *err);
/* Durable when it returns; the revision stays as it is. */
must_check int registry_store_know(struct registry *store, const struct registry_state *state,
				   struct err *err);
/* What is kept there becomes the registry, durably and whole or not at all, with `state` as what is known.
 * state->revision: the newest change known, and then the first of this host's; `numbers`: process numbers
 * below are taken. */
must_check int registry_store_take_over(struct registry *store, struct registry_state *state,
					uint64_t numbers, struct err *err);
/* On the other hosts: keeps changes that the central one has sent; with `copy`, all of it instead. */
must_check int registry_store_keep(struct registry *store, const Pbeam__RegistryChanges *changes,
				   const struct registry_copy *copy, struct err *err);
/* All entries, to be freed with message_free(); NULL with *err set. */
Pbeam__RegistryChanges *registry_store_whole(struct registry *store, struct err *err);

#endif
