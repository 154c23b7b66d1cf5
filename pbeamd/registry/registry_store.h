#ifndef PBEAMD_REGISTRY_REGISTRY_STORE_H
#define PBEAMD_REGISTRY_REGISTRY_STORE_H

#include "namespace/registry.h"
#include "pbeamd/transport/cluster.h"

must_check int registry_store_open(struct registry *out, struct err *err);
/* Reads the stored state, zeroes if there is none. */
must_check int registry_store_state(struct registry *store, struct registry_state *out, struct err *err);
/* Stores the state durably, except its revision. */
must_check int registry_store_know(struct registry *store, const struct registry_state *state,
				   struct err *err);
/* Makes the stored entries the registry, and stores `state`, in one durable transaction. state->revision: in,
 * the newest known change; out, this host's first change. `numbers`: all process numbers below are taken. */
must_check int registry_store_take_over(struct registry *store, struct registry_state *state,
					uint64_t numbers, struct err *err);
/* On other hosts: stores changes from the central host; with `copy`, replaces all entries with it. */
must_check int registry_store_keep(struct registry *store, const Pbeam__RegistryChanges *changes,
				   const struct registry_copy *copy, struct err *err);
/* Returns all entries, to be freed with message_free(); NULL with *err set. */
Pbeam__RegistryChanges *registry_store_whole(struct registry *store, struct err *err);

#endif
