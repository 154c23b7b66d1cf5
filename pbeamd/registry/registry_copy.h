#ifndef PBEAMD_REGISTRY_REGISTRY_COPY_H
#define PBEAMD_REGISTRY_REGISTRY_COPY_H

#include "namespace/registry.h"
#include "pbeamd/transport/cluster.h"

struct registry_copy *registry_copy_new(void); /* NULL without memory */
void registry_copy_free(struct registry_copy *copy);
/* Brings it up to date. `seen` is called for every entry that has changed or (removed) is not there any more.
 * -EBADMSG: a change that no registry makes, and nothing has been taken; -ENOMEM. */
typedef void (*registry_seen_fn)(void *arg, const Pbeam__RegistryEntry *entry);
must_check int registry_copy_apply(struct registry_copy *copy, const Pbeam__RegistryChanges *changes,
				   registry_seen_fn seen, void *arg);
/* NULL when there is none. Valid until the next change. */
const Pbeam__RegistryEntry *registry_copy_get(const struct registry_copy *copy, const char *key);
/* All whose keys begin with `prefix`; `seen` must not change the copy. */
void registry_copy_each(const struct registry_copy *copy, const char *prefix, registry_seen_fn seen,
			void *arg);
/* All as one message, to be freed with message_free(); NULL without memory. */
Pbeam__RegistryChanges *registry_copy_whole(const struct registry_copy *copy);
/* True once it has been whole. */
bool registry_copy_ready(const struct registry_copy *copy);
uint64_t registry_copy_revision(const struct registry_copy *copy);

#endif
