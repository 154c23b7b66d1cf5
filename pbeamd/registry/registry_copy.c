/* All entries of the registry in memory. */
#include "pbeamd/registry/registry_copy.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/message.h"

enum { BUCKETS = 4096 };

struct item {
	struct item *next;
	Pbeam__RegistryEntry *entry;
	uint64_t generation; /* of the last whole registry that had it */
};

struct registry_copy {
	struct item *buckets[BUCKETS];
	uint64_t revision, generation;
};

struct registry_copy *registry_copy_new(void)
{
	return calloc(1, sizeof(struct registry_copy));
}

static void free_item(struct item *item)
{
	message_free(item->entry);
	free(item);
}

void registry_copy_free(struct registry_copy *copy)
{
	for (int i = 0; copy && i < BUCKETS; i++)
		while (copy->buckets[i]) {
			struct item *item = copy->buckets[i];

			copy->buckets[i] = item->next;
			free_item(item);
		}
	free(copy);
}

static struct item **copy_find_place(const struct registry_copy *copy, const char *key)
{
	struct item **p;
	uint32_t h = 2166136261u;

	for (const char *c = key; *c; c++)
		h = (h ^ (unsigned char)*c) * 16777619u;
	p = (struct item **)(uintptr_t)&copy->buckets[h % BUCKETS];
	while (*p && strcmp((*p)->entry->key, key) != 0)
		p = &(*p)->next;
	return p;
}

const Pbeam__RegistryEntry *registry_copy_get(const struct registry_copy *copy, const char *key)
{
	const struct item *item = *copy_find_place(copy, key);

	return item ? item->entry : NULL;
}

const Pbeam__RegistryEntry *registry_copy_getf(const struct registry_copy *copy, const char *format, ...)
{
	char key[REGISTRY_KEY_MAX];
	va_list args;

	va_start(args, format);
	vsnprintf(key, sizeof(key), format, args);
	va_end(args);
	return registry_copy_get(copy, key);
}

const Pbeam__RegistryEntry *registry_copy_place(const struct registry_copy *copy, int32_t vpid,
						char host[static CHANNEL_HOST_MAX])
{
	const Pbeam__RegistryEntry *entry = registry_copy_getf(copy, "vpid/%d", vpid);
	Pbeam__Place *place = entry ? pbeam__place__unpack(NULL, entry->value.len, entry->value.data) : NULL;
	bool good = place && channel_host_ok(place->host);

	if (good)
		strcpy(host, place->host);
	message_free(place);
	return good ? entry : NULL;
}

static int copy_fill_entry(Pbeam__RegistryEntry *to, const Pbeam__RegistryEntry *from)
{
	to->version = from->version;
	to->removed = from->removed;
	if (message_string(&to->key, from->key) < 0 || message_string(&to->host, from->host) < 0)
		return -ENOMEM;
	return message_bytes(&to->value, from->value.data, from->value.len);
}

static Pbeam__RegistryEntry *copy_duplicate_entry(const Pbeam__RegistryEntry *from)
{
	Pbeam__RegistryEntry *entry = message_new(&pbeam__registry_entry__descriptor);

	if (entry && copy_fill_entry(entry, from) < 0) {
		message_free(entry);
		entry = NULL;
	}
	return entry;
}

/* Removes an item; the watcher sees the entry as removed. */
static void copy_remove_item(struct item **p, registry_seen_fn seen, void *arg)
{
	struct item *item = *p;

	*p = item->next;
	item->entry->removed = true;
	seen(arg, item->entry);
	free_item(item);
}

static int take_in(struct registry_copy *copy, const Pbeam__RegistryEntry *entry, registry_seen_fn seen,
		   void *arg)
{
	struct item **p = copy_find_place(copy, entry->key), *item = *p;
	bool same = item && item->entry->version == entry->version &&
		    message_same_bytes(&item->entry->value, &entry->value);
	Pbeam__RegistryEntry *fresh;

	if (entry->removed) {
		if (item)
			copy_remove_item(p, seen, arg);
		return 0;
	}
	fresh = same ? NULL : copy_duplicate_entry(entry);
	if (!same && !fresh)
		return -ENOMEM;
	if (!item) {
		item = calloc(1, sizeof(*item));
		if (!item) {
			message_free(fresh);
			return -ENOMEM;
		}
		item->next = *p;
		*p = item;
	}
	item->generation = copy->generation;
	if (same)
		return 0;
	message_free(item->entry);
	item->entry = fresh;
	seen(arg, fresh);
	return 0;
}

int registry_copy_apply(struct registry_copy *copy, const Pbeam__RegistryChanges *changes,
			registry_seen_fn seen, void *arg)
{
	if (changes->revision > REGISTRY_REVISION_MAX)
		return -EBADMSG;
	for (size_t i = 0; i < changes->n_entries; i++)
		if (registry_check_key(changes->entries[i]->key, false, NULL) < 0 ||
		    changes->entries[i]->value.len > REGISTRY_VALUE_MAX)
			return -EBADMSG;
	if (changes->whole)
		copy->generation++;
	for (size_t i = 0; i < changes->n_entries; i++)
		if (take_in(copy, changes->entries[i], seen, arg) < 0)
			return -ENOMEM;
	for (int i = 0; i < BUCKETS && changes->whole; i++)
		for (struct item **p = &copy->buckets[i]; *p;) {
			if ((*p)->generation != copy->generation)
				copy_remove_item(p, seen, arg);
			else
				p = &(*p)->next;
		}
	copy->revision = changes->revision;
	return 0;
}

void registry_copy_each(const struct registry_copy *copy, const char *prefix, registry_seen_fn seen,
			void *arg)
{
	size_t len = strlen(prefix);

	for (int i = 0; i < BUCKETS; i++)
		for (const struct item *item = copy->buckets[i]; item; item = item->next)
			if (!strncmp(item->entry->key, prefix, len))
				seen(arg, item->entry);
}

struct gathering {
	Pbeam__RegistryChanges *changes;
	bool failed;
};

static void copy_gather_entry(void *arg, const Pbeam__RegistryEntry *entry)
{
	struct gathering *gathering = arg;
	Pbeam__RegistryEntry *copy =
		message_add(gathering->changes, entries, pbeam__registry_entry__descriptor);

	if (!copy || copy_fill_entry(copy, entry) < 0)
		gathering->failed = true;
}

Pbeam__RegistryChanges *registry_copy_whole(const struct registry_copy *copy)
{
	struct gathering gathering = {message_new(&pbeam__registry_changes__descriptor), false};

	if (!gathering.changes)
		return NULL;
	gathering.changes->whole = true;
	gathering.changes->revision = copy->revision;
	registry_copy_each(copy, "", copy_gather_entry, &gathering);
	if (gathering.failed) {
		message_free(gathering.changes);
		return NULL;
	}
	return gathering.changes;
}

bool registry_copy_ready(const struct registry_copy *copy)
{
	return copy->generation > 0;
}

uint64_t registry_copy_revision(const struct registry_copy *copy)
{
	return copy->revision;
}
