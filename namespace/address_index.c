/* The chains of addresses: address_index.h. */
#include "namespace/address_index.h"

#include <errno.h>
#include <string.h>

static bool index_is_own(const struct address_key *key)
{
	return key->family == AF_INET
		       ? key->bytes[0] == 127
		       : IN6_IS_ADDR_LOOPBACK((const struct in6_addr *)(const void *)key->bytes);
}

/* Data for a wildcard goes to the loopback. */
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

int address_key_make(int protocol, const struct sockaddr *address, uint32_t host, struct address_key *key)
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
	if (index_is_own(key))
		key->host = (uint16_t)host;
	return 0;
}

static uint32_t index_hash_key(const struct address_key *key)
{
	const uint8_t *bytes = (const uint8_t *)key;
	uint32_t h = 2166136261u;

	for (size_t i = 0; i < sizeof(*key); i++)
		h = (h ^ bytes[i]) * 16777619u;
	return h % ADDRESS_HEADS;
}

static int address_key_of(const struct table_address *entry, bool real, struct address_key *key)
{
	int r = real ? address_key_make(entry->a.protocol, &entry->a.real.sa, entry->host, key)
		     : address_key_make(entry->a.protocol, &entry->alias.sa, entry->born, key);

	if (r == 0 && !real)
		key->scope = entry->a.scope;
	return r;
}

uint32_t address_index_find(const struct table_cluster *cluster, const struct address_key *key, bool real)
{
	uint32_t at = (real ? cluster->by_real : cluster->by_name)[index_hash_key(key)];

	for (uint32_t n = 0; at && at <= TABLE_ADDRESSES && n < TABLE_ADDRESSES; n++) {
		const struct table_address *entry = &cluster->addresses[at - 1];
		struct address_key other;

		if (entry->used && address_key_of(entry, real, &other) == 0 &&
		    memcmp(&other, key, sizeof(other)) == 0)
			return at;
		at = real ? entry->next_real : entry->next_name;
	}
	return 0;
}

void address_index_begin(struct table_cluster *cluster)
{
	atomic_fetch_add(&cluster->sequence, 1);
}

void address_index_end(struct table_cluster *cluster)
{
	atomic_fetch_add_explicit(&cluster->sequence, 1, memory_order_release);
}

static void link_in(struct table_cluster *cluster, uint32_t index)
{
	struct table_address *entry = &cluster->addresses[index];
	struct address_key name, real;
	uint16_t *head;

	if (address_key_of(entry, false, &name) < 0 || address_key_of(entry, true, &real) < 0)
		return;
	if (!entry->a.caller || (entry->a.protocol == IPPROTO_UDP && !entry->a.passing)) {
		head = &cluster->by_name[index_hash_key(&name)];
		entry->next_name = *head;
		*head = (uint16_t)(index + 1);
	}
	if (entry->first) {
		head = &cluster->by_real[index_hash_key(&real)];
		entry->next_real = *head;
		*head = (uint16_t)(index + 1);
	}
}

void address_index_rebuild(struct table_cluster *cluster)
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
