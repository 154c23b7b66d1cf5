/*
 * The state that all hosts of a cluster agree on: entries key -> value with a version, changed by
 * compare-and-set, several at once, all or none; ranges of numbers leased in order; changes sent to every
 * host in order.
 *
 * struct registry is the interface of an engine. The central daemon's database is one
 * (pbeamd/registry/registry_store.c), requests to it from another host are a second
 * (pbeamd/registry/registry_remote.c). A distributed engine can replace both without changes above
 * pbeamd/registry/.
 */
#ifndef NAMESPACE_REGISTRY_H
#define NAMESPACE_REGISTRY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "proto/cluster.pb-c.h"

#define REGISTRY_KEY_MAX       512	  /* bytes */
#define REGISTRY_VALUE_MAX     (1u << 20) /* bytes */
#define REGISTRY_SETS_MAX      20000	  /* entries that one request changes */
#define REGISTRY_REVISION_MAX  (1ull << 62)

#define REGISTRY_LEASE	       "lease/" /* prefix of the keys of ranges; the value is the next number, as text */

/* The range of process numbers above the kernel's, in which hosts lease blocks. */
#define REGISTRY_NUMBERS       "lease/numbers"
#define REGISTRY_NUMBERS_FIRST 4194304
#define REGISTRY_NUMBERS_END   8388608

/* Receives the reply, read-only. reply->code is 0 or -errno with a text: -EEXIST if an entry does not have
 * the expected version (reply->entries has the present one), -EHOSTUNREACH if the request was not sent,
 * -ECONNRESET if it was sent and may have been carried out or not. */
typedef void (*registry_done_fn)(void *arg, const Pbeam__RegistryReply *reply);
/* Receives changes, in order; changes->whole: all entries. */
typedef void (*registry_changed_fn)(void *arg, const Pbeam__RegistryChanges *changes);

/* `done` is called exactly once, perhaps before the operation returns. `host`: the host that sent the
 * request. */
struct registry_operations {
	/* Leases `count` consecutive numbers that were never leased before: reply->first. */
	void (*lease)(void *engine, const char *key, uint64_t count, const char *host, registry_done_fn done,
		      void *arg);
	/* Changes all of `sets` (key, value, expected, remove) or none: reply->version. */
	void (*set)(void *engine, Pbeam__RegistryRequest *const *sets, size_t n, const char *host,
		    registry_done_fn done, void *arg);
	/* -ENOENT, or reply->value and version. */
	void (*get)(void *engine, const char *key, registry_done_fn done, void *arg);
	/* All entries whose keys begin with `prefix`: reply->entries. */
	void (*list)(void *engine, const char *prefix, registry_done_fn done, void *arg);
	/* Calls `changed` with all entries, then with each change. There is one watcher. */
	void (*watch)(void *engine, registry_changed_fn changed, void *arg);
	void (*close)(void *engine);
};

struct registry {
	const struct registry_operations *operations; /* NULL: none */
	void *engine;
};

/* -EINVAL if the key is malformed. */
must_check int registry_check_key(const char *key, bool may_be_empty, struct err *err);
/* Checks a request that came over a socket and passes it to the engine. */
void registry_carry_out(const struct registry *registry, const Pbeam__RegistryRequest *request,
			const char *host, registry_done_fn done, void *arg);
/* Replies with the error. */
void registry_refuse(const struct err *err, registry_done_fn done, void *arg);

#endif
