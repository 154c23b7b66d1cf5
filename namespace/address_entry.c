#include "namespace/address_entry.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/parse.h"
#include "proto/message.h"

/* ---- addresses ---- */

bool address_from_text(const char *text, uint16_t port, union name_sockaddr *out)
{
	memset(out, 0, sizeof(*out));
	if (inet_pton(AF_INET, text, &out->in.sin_addr) == 1) {
		out->in.sin_family = AF_INET;
		out->in.sin_port = htons(port);
		return true;
	}
	out->in6.sin6_family = AF_INET6;
	out->in6.sin6_port = htons(port);
	return inet_pton(AF_INET6, text, &out->in6.sin6_addr) == 1;
}

bool address_is_wildcard(const union name_sockaddr *address)
{
	return address->sa.sa_family == AF_INET ? address->in.sin_addr.s_addr == htonl(INADDR_ANY)
						: IN6_IS_ADDR_UNSPECIFIED(&address->in6.sin6_addr);
}

bool address_is_loopback(const union name_sockaddr *address)
{
	const struct in6_addr *in6 = &address->in6.sin6_addr;

	if (address->sa.sa_family == AF_INET)
		return ntohl(address->in.sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
	return IN6_IS_ADDR_LOOPBACK(in6) || (IN6_IS_ADDR_V4MAPPED(in6) && in6->s6_addr[12] == IN_LOOPBACKNET);
}

uint16_t address_port(const union name_sockaddr *address)
{
	return ntohs(address->sa.sa_family == AF_INET ? address->in.sin_port : address->in6.sin6_port);
}

void address_set_port(union name_sockaddr *address, uint16_t port)
{
	if (address->sa.sa_family == AF_INET)
		address->in.sin_port = htons(port);
	else
		address->in6.sin6_port = htons(port);
}

socklen_t address_size(const union name_sockaddr *address)
{
	return address->sa.sa_family == AF_INET ? sizeof(address->in) : sizeof(address->in6);
}

bool address_in_family(union name_sockaddr *address, int family)
{
	union name_sockaddr out = {0};

	if (address->sa.sa_family == family)
		return true;
	if (family == AF_INET6 && address->sa.sa_family == AF_INET) {
		out.in6.sin6_family = AF_INET6;
		out.in6.sin6_port = address->in.sin_port;
		if (address->in.sin_addr.s_addr != htonl(INADDR_ANY)) {
			out.in6.sin6_addr.s6_addr[10] = out.in6.sin6_addr.s6_addr[11] = 0xff;
			memcpy(out.in6.sin6_addr.s6_addr + 12, &address->in.sin_addr, 4);
		}
	} else if (family == AF_INET && IN6_IS_ADDR_V4MAPPED(&address->in6.sin6_addr)) {
		out.in.sin_family = AF_INET;
		out.in.sin_port = address->in6.sin6_port;
		memcpy(&out.in.sin_addr, address->in6.sin6_addr.s6_addr + 12, 4);
	} else {
		return false;
	}
	*address = out;
	return true;
}

/* ---- the key ---- */

/* True for an address that each host has of its own: a wildcard or loopback address. */
static bool has_host(const union name_sockaddr *name)
{
	return address_is_wildcard(name) || address_is_loopback(name);
}

int address_entry_key(const struct name_address *address, char key[ADDRESS_KEY_MAX])
{
	const union name_sockaddr *name = &address->name;
	bool v4 = name->sa.sa_family == AF_INET;
	char text[INET6_ADDRSTRLEN];

	if (!v4 && name->sa.sa_family != AF_INET6)
		return -EAFNOSUPPORT;
	if (!inet_ntop(name->sa.sa_family,
		       v4 ? (const void *)&name->in.sin_addr : (const void *)&name->in6.sin6_addr, text,
		       sizeof(text)))
		return -errno;
	snprintf(key, ADDRESS_KEY_MAX, ADDRESS_PREFIX "%s/%s%s%s:%u%s%s",
		 address->protocol == IPPROTO_TCP ? "tcp" : "udp", v4 ? "" : "[", text, v4 ? "" : "]",
		 address_port(name), has_host(name) ? "@" : "", has_host(name) ? address->born : "");
	return 0;
}

static int parse_key(const char *key, struct name_address *out)
{
	char text[ADDRESS_KEY_MAX], *host, *colon, *at;
	uint64_t port;
	size_t len;

	if (strlen(key) >= sizeof(text) || strncmp(key, ADDRESS_PREFIX, strlen(ADDRESS_PREFIX)) != 0)
		return -EINVAL;
	strcpy(text, key + strlen(ADDRESS_PREFIX));
	out->protocol = !strncmp(text, "tcp/", 4) ? IPPROTO_TCP : !strncmp(text, "udp/", 4) ? IPPROTO_UDP : 0;
	host = text + 4;
	at = out->protocol ? strchr(host, '@') : NULL;
	if (at)
		*at++ = 0;
	colon = out->protocol ? strrchr(host, ':') : NULL;
	if (!colon || parse_number(colon + 1, 0, 65535, &port, NULL) < 0 ||
	    (at && strlen(at) >= sizeof(out->born)))
		return -EINVAL;
	*colon = 0;
	len = strlen(host);
	if (len >= 2 && host[0] == '[' && host[len - 1] == ']') {
		host[len - 1] = 0;
		host++;
	}
	if (at)
		strcpy(out->born, at);
	if (!address_from_text(host, (uint16_t)port, &out->name) || has_host(&out->name) != (at != NULL))
		return -EINVAL;
	return 0;
}

/* ---- the value ---- */

static bool entry_take_address(const ProtobufCBinaryData *bytes, union name_sockaddr *out)
{
	memset(out, 0, sizeof(*out));
	if (bytes->len < sizeof(sa_family_t) || bytes->len > sizeof(*out))
		return false;
	bytes_copy(out, bytes->data, bytes->len);
	return (out->sa.sa_family == AF_INET && bytes->len == sizeof(out->in)) ||
	       (out->sa.sa_family == AF_INET6 && bytes->len == sizeof(out->in6));
}

static int entry_take_value(const Pbeam__AddressPlace *place, struct address_entry *out)
{
	if (!entry_take_address(&place->real, &out->address.real) ||
	    strlen(place->host) >= sizeof(out->address.host) || place->n_names > ADDRESS_ALIASES_MAX)
		return -EINVAL;
	strcpy(out->address.host, place->host);
	out->address.vpid.n = place->vpid;
	for (size_t i = 0; i < place->n_names; i++)
		if (!entry_take_address(&place->names[i], &out->aliases[out->n++]))
			return -EINVAL;
	return 0;
}

int address_entry_parse(const Pbeam__RegistryEntry *entry, struct address_entry *out)
{
	Pbeam__AddressPlace *place;
	int r;

	memset(out, 0, sizeof(*out));
	r = parse_key(entry->key, &out->address);
	if (r < 0 || entry->removed)
		return r;
	place = pbeam__address_place__unpack(NULL, entry->value.len, entry->value.data);
	r = place ? entry_take_value(place, out) : -EINVAL;
	message_free(place);
	return r;
}

int address_entry_pack(const struct address_entry *entry, ProtobufCBinaryData *out)
{
	Pbeam__AddressPlace place = PBEAM__ADDRESS_PLACE__INIT;
	ProtobufCBinaryData names[ADDRESS_ALIASES_MAX];

	place.host = (char *)(uintptr_t)entry->address.host;
	place.vpid = entry->address.vpid.n;
	place.real = (ProtobufCBinaryData){address_size(&entry->address.real),
					   (uint8_t *)(uintptr_t)&entry->address.real};
	for (size_t i = 0; i < entry->n; i++)
		names[i] = (ProtobufCBinaryData){address_size(&entry->aliases[i]),
						 (uint8_t *)(uintptr_t)&entry->aliases[i]};
	place.names = names;
	place.n_names = entry->n;
	out->len = pbeam__address_place__get_packed_size(&place);
	out->data = malloc(out->len ? out->len : 1);
	if (!out->data)
		return -ENOMEM;
	pbeam__address_place__pack(&place, out->data);
	return 0;
}

static void entry_add_address(struct address_entry *entry, const char *text, int family, bool only)
{
	union name_sockaddr *alias = &entry->aliases[entry->n];

	if (entry->n == ADDRESS_ALIASES_MAX ||
	    !address_from_text(text, address_port(&entry->address.name), alias))
		return;
	if (alias->sa.sa_family == family || (family == AF_INET6 && !only))
		entry->n++;
}

void address_entry_name(struct address_entry *entry, const Pbeam__HostInfo *info, bool v6_only)
{
	int family = entry->address.name.sa.sa_family;

	entry->n = 0;
	if (!address_is_wildcard(&entry->address.name)) {
		entry->aliases[entry->n++] = entry->address.name;
		return;
	}
	/* the address that other hosts know it by comes first */
	if (info && info->address)
		entry_add_address(entry, info->address, family, v6_only);
	for (size_t i = 0; info && i < info->n_addresses; i++)
		if (strcmp(info->addresses[i], info->address) != 0)
			entry_add_address(entry, info->addresses[i], family, v6_only);
	entry_add_address(entry, "127.0.0.1", family, v6_only);
	entry_add_address(entry, "::1", family, v6_only);
}
