/*
 * Transport addresses that are not where their names say. Entries are in two chains, by name and by real
 * address, changed under the table's lock and read under a sequence number.
 */
#include <errno.h>
#include <string.h>

#include "namespace/table.h"

enum { TRIES = 10000 };

/* What is compared: family, port, address, of the loopback whose; the rest zero. */
struct address_key {
	uint16_t family, port;
	uint16_t protocol, host;
	uint32_t scope;
	uint8_t bytes[16];
};

static bool is_own(const struct address_key *key)
{
	return key->family == AF_INET
		       ? key->bytes[0] == 127
		       : IN6_IS_ADDR_LOOPBACK((const struct in6_addr *)(const void *)key->bytes);
}

/* What is sent to a wildcard goes to the loopback. */
static void make_concrete(struct address_key *key)
{
	static const uint8_t none[16];

	if (memcmp(key->bytes, none, sizeof(none)) != 0)
		return;
	if (key->family == AF_INET)
		memcpy(key->bytes, (const uint8_t[]){127, 0, 0, 1}, 4);
	else
		key->bytes[15] = 1;
}

static int make_key(int protocol, const struct sockaddr *address, uint32_t host, struct address_key *key)
{
	const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)(const void *)address;
	const struct sockaddr_in *in = (const struct sockaddr_in *)(const void *)address;

	memset(key, 0, sizeof(*key));
	key->protocol = (uint16_t)protocol;
	key->family = AF_INET;
	if (address->sa_family == AF_INET) {
		key->port = in->sin_port;
		memcpy(key->bytes, &in->sin_addr, sizeof(in->sin_addr));
	} else if (address->sa_family == AF_INET6) {
		key->port = in6->sin6_port;
		if (IN6_IS_ADDR_V4MAPPED(&in6->sin6_addr)) {
			memcpy(key->bytes, in6->sin6_addr.s6_addr + 12, 4);
		} else {
			key->family = AF_INET6;
			memcpy(key->bytes, &in6->sin6_addr, sizeof(in6->sin6_addr));
		}
	} else {
		return -EAFNOSUPPORT;
	}
	make_concrete(key);
	if (is_own(key))
		key->host = (uint16_t)host;
	return 0;
}

static uint32_t hash(const struct address_key *key)
{
	const uint8_t *bytes = (const uint8_t *)key;
	uint32_t h = 2166136261u;

	for (size_t i = 0; i < sizeof(*key); i++)
		h = (h ^ bytes[i]) * 16777619u;
	return h % ADDRESS_HEADS;
}

static int key_of(const struct table_address *entry, bool real, struct address_key *key)
{
	int r = real ? make_key(entry->a.protocol, &entry->a.real.sa, entry->host, key)
		     : make_key(entry->a.protocol, &entry->alias.sa, entry->born, key);

	if (r == 0 && !real)
		key->scope = entry->a.scope;
	return r;
}

/* The entry's index + 1, 0 where there is none. Bounded, whatever the chains look like meanwhile. */
static uint32_t walk(const struct table_cluster *cluster, const struct address_key *key, bool real)
{
	uint32_t at = (real ? cluster->by_real : cluster->by_name)[hash(key)];

	for (uint32_t n = 0; at && at <= TABLE_ADDRESSES && n < TABLE_ADDRESSES; n++) {
		const struct table_address *entry = &cluster->addresses[at - 1];
		struct address_key other;

		if (entry->used && key_of(entry, real, &other) == 0 &&
		    memcmp(&other, key, sizeof(other)) == 0)
			return at;
		at = real ? entry->next_real : entry->next_name;
	}
	return 0;
}

static void host_text(const struct table_cluster *cluster, uint32_t index, char out[NAME_TEXT_MAX])
{
	memcpy(out, cluster->hosts[index < TABLE_HOSTS ? index : 0], NAME_TEXT_MAX);
	out[NAME_TEXT_MAX - 1] = 0;
}

static void take_entry(const struct table_cluster *cluster, uint32_t at, struct name_address *out)
{
	const struct table_address *entry = &cluster->addresses[at - 1];

	*out = entry->a;
	out->name = entry->alias;
	host_text(cluster, entry->host, out->host);
	host_text(cluster, entry->born, out->born);
}

static int find(struct names *names, const struct address_key *key, bool real, struct name_address *out)
{
	struct table_cluster *cluster = &names->table->cluster;
	uint32_t at = 0, before;

	for (int i = 0; i < TRIES; i++) {
		before = atomic_load_explicit(&cluster->sequence, memory_order_acquire);
		if (before & 1) {
			/* long enough for any change: its writer died, and taking the lock repairs that */
			if (i == TRIES / 2 && table_lock(names) == 0)
				table_unlock(names);
			continue;
		}
		at = walk(cluster, key, real);
		if (at)
			take_entry(cluster, at, out);
		atomic_thread_fence(memory_order_acquire);
		if (atomic_load_explicit(&cluster->sequence, memory_order_relaxed) == before)
			break;
		at = 0;
	}
	return at ? 0 : -ENOENT;
}

bool names_address_any(struct names *names)
{
	return atomic_load_explicit(&names->table->cluster.naddresses, memory_order_acquire) != 0;
}

int names_address_find(struct names *names, int protocol, const struct sockaddr *name, const char *born,
		       struct name_address *out)
{
	const struct table_cluster *cluster = &names->table->cluster;
	uint32_t host = HOST_OWN, n = atomic_load(&cluster->nhosts);
	struct address_key key;

	if (!names_address_any(names))
		return -ENOENT;
	if (born)
		for (host = HOST_OWN; host <= n && strcmp(cluster->hosts[host], born) != 0;)
			host++;
	return make_key(protocol, name, host, &key) < 0 ? -ENOENT : find(names, &key, false, out);
}

int names_address_find_caller(struct names *names, const struct sockaddr *name, uint16_t scope,
			      struct name_address *out)
{
	struct address_key key;

	if (!names_address_any(names) || make_key(IPPROTO_UDP, name, HOST_OWN, &key) < 0)
		return -ENOENT;
	key.scope = scope;
	return find(names, &key, false, out);
}

int names_address_find_real(struct names *names, int protocol, const struct sockaddr *real,
			    struct name_address *out)
{
	struct address_key key;

	if (!names_address_any(names) || make_key(protocol, real, HOST_OWN, &key) < 0)
		return -ENOENT;
	return find(names, &key, true, out);
}

/* ---- changing, under the lock ---- */

static void begin(struct table_cluster *cluster)
{
	atomic_fetch_add(&cluster->sequence, 1);
}

static void end(struct table_cluster *cluster)
{
	atomic_fetch_add_explicit(&cluster->sequence, 1, memory_order_release);
}

static void link_in(struct table_cluster *cluster, uint32_t index)
{
	struct table_address *entry = &cluster->addresses[index];
	struct address_key name, real;
	uint16_t *head;

	if (key_of(entry, false, &name) < 0 || key_of(entry, true, &real) < 0)
		return;
	if (!entry->a.caller || (entry->a.protocol == IPPROTO_UDP && !entry->a.passing)) {
		head = &cluster->by_name[hash(&name)];
		entry->next_name = *head;
		*head = (uint16_t)(index + 1);
	}
	if (entry->first) {
		head = &cluster->by_real[hash(&real)];
		entry->next_real = *head;
		*head = (uint16_t)(index + 1);
	}
}

/* Entries come and go with migrations, not with calls: the chains are made anew each time. */
static void rebuild(struct table_cluster *cluster)
{
	uint32_t n = 0;

	memset(cluster->by_name, 0, sizeof(cluster->by_name));
	memset(cluster->by_real, 0, sizeof(cluster->by_real));
	for (uint32_t i = 0; i < TABLE_ADDRESSES; i++)
		if (cluster->addresses[i].used) {
			link_in(cluster, i);
			n++;
		}
	atomic_store(&cluster->naddresses, n);
}

/* Takes out all that it is called by. True if there was something. */
static bool take_out(struct table_cluster *cluster, const struct name_address *address, uint32_t born)
{
	size_t len = address->name.sa.sa_family == AF_INET ? sizeof(struct sockaddr_in)
							   : sizeof(struct sockaddr_in6);
	bool found = false;

	for (uint32_t i = 0; i < TABLE_ADDRESSES; i++) {
		struct table_address *entry = &cluster->addresses[i];

		if (!entry->used || entry->a.protocol != address->protocol || entry->born != born ||
		    entry->a.caller != address->caller || entry->a.scope != address->scope ||
		    memcmp(&entry->a.name, &address->name, len) != 0)
			continue;
		entry->used = 0;
		found = true;
	}
	return found;
}

static int put_in(struct table_cluster *cluster, const struct name_address *address, uint32_t host,
		  uint32_t born, const union name_sockaddr *aliases, size_t n)
{
	uint32_t at = 0;

	for (size_t i = 0; i < n; i++) {
		struct table_address *entry;

		while (at < TABLE_ADDRESSES && cluster->addresses[at].used)
			at++;
		if (at == TABLE_ADDRESSES)
			return -ENOSPC;
		entry = &cluster->addresses[at];
		entry->a = *address;
		entry->host = host;
		entry->born = born;
		entry->alias = aliases[i];
		entry->first = i == 0;
		entry->used = 1;
	}
	return 0;
}

static int index_of(struct table_cluster *cluster, const char *host)
{
	return host[0] ? table_host_index(cluster, host) : (int)HOST_OWN;
}

int names_address_set(struct names *names, const struct name_address *address,
		      const union name_sockaddr *aliases, size_t n)
{
	struct table_cluster *cluster = &names->table->cluster;
	struct address_key key;
	int host, born, r;

	if (make_key(address->protocol, &address->name.sa, 0, &key) < 0 ||
	    make_key(address->protocol, &address->real.sa, 0, &key) < 0)
		return -EAFNOSUPPORT;
	r = table_lock(names);
	if (r < 0)
		return r;
	host = index_of(cluster, address->host);
	born = index_of(cluster, address->born);
	if (host < 0 || born < 0) {
		r = host < 0 ? host : born;
	} else {
		begin(cluster);
		(void)take_out(cluster, address, (uint32_t)born);
		r = put_in(cluster, address, (uint32_t)host, (uint32_t)born, n ? aliases : &address->name,
			   n ? n : 1);
		rebuild(cluster);
		end(cluster);
	}
	table_unlock(names);
	return r;
}

void names_address_remove(struct names *names, const struct name_address *address)
{
	struct table_cluster *cluster = &names->table->cluster;
	int family = address->name.sa.sa_family, born;

	if (!names_address_any(names) || (family != AF_INET && family != AF_INET6) || table_lock(names) < 0)
		return;
	born = index_of(cluster, address->born);
	begin(cluster);
	if (born >= 0 && take_out(cluster, address, (uint32_t)born))
		rebuild(cluster);
	end(cluster);
	table_unlock(names);
}

void names_address_clear(struct names *names, bool callers)
{
	struct table_cluster *cluster = &names->table->cluster;

	if (!names_address_any(names) || table_lock(names) < 0)
		return;
	begin(cluster);
	for (uint32_t i = 0; i < TABLE_ADDRESSES; i++)
		if (callers || !cluster->addresses[i].a.caller)
			cluster->addresses[i].used = 0;
	rebuild(cluster);
	end(cluster);
	table_unlock(names);
}

void table_repair_cluster(struct table *table)
{
	struct table_cluster *cluster = &table->cluster;
	uint32_t n = 0;

	for (uint32_t i = 0; i < PLACE_SLOTS; i++)
		n += map_used(atomic_load(&cluster->places[i]));
	cluster->nplaces = n;
	if (!(atomic_load(&cluster->sequence) & 1))
		begin(cluster);
	rebuild(cluster);
	end(cluster);
}
