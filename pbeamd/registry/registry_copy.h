#ifndef PBEAMD_REGISTRY_REGISTRY_COPY_H
#define PBEAMD_REGISTRY_REGISTRY_COPY_H

#include "namespace/registry.h"
#include "pbeamd/transport/cluster.h"

struct registry_copy *registry_copy_new(void); /* NULL without memory */
void registry_copy_free(struct registry_copy *copy);
/* Applies changes. `seen` is called for every entry that was changed or removed. -EBADMSG: the changes are
 * malformed and none was applied; -ENOMEM. */
typedef void (*registry_seen_fn)(void *arg, const Pbeam__RegistryEntry *entry);
must_check int registry_copy_apply(struct registry_copy *copy, const Pbeam__RegistryChanges *changes,
				   registry_seen_fn seen, void *arg);
/* Returns an entry, NULL if there is none. Valid until the next change. */
const Pbeam__RegistryEntry *registry_copy_get(const struct registry_copy *copy, const char *key);
/* The same for a key in printf's format. */
__attribute__((format(printf, 2, 3))) const Pbeam__RegistryEntry *
registry_copy_getf(const struct registry_copy *copy, const char *format, ...);
/* Returns the entry vpid/N, and in `host` the host where it places the process. NULL if there is none, or it
 * is malformed. */
const Pbeam__RegistryEntry *registry_copy_place(const struct registry_copy *copy, int32_t vpid,
						char host[static CHANNEL_HOST_MAX]);
/* Calls `seen` for all entries whose keys begin with `prefix`; it must not change the copy. */
void registry_copy_each(const struct registry_copy *copy, const char *prefix, registry_seen_fn seen,
			void *arg);
/* Returns all entries, to be freed with message_free(); NULL without memory. */
Pbeam__RegistryChanges *registry_copy_whole(const struct registry_copy *copy);
/* True once the copy has been complete. */
bool registry_copy_ready(const struct registry_copy *copy);
uint64_t registry_copy_revision(const struct registry_copy *copy);

#endif
