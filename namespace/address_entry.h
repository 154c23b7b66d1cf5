/*
 * Entries address/... of the registry: locations of bound transport addresses that have moved to another
 * host. The key is the name as it was bound, "address/tcp/10.0.0.1:5000", "address/udp/[2001:db8::1]:53"; a
 * wildcard or loopback address, which every host has, is followed by the host that it belongs to:
 * "address/tcp/0.0.0.0:80@a".
 */
#ifndef NAMESPACE_ADDRESS_ENTRY_H
#define NAMESPACE_ADDRESS_ENTRY_H

#include "namespace/names.h"
#include "proto/cluster.pb-c.h"

#define ADDRESS_PREFIX	    "address/"
#define ADDRESS_KEY_MAX	    192
#define ADDRESS_ALIASES_MAX 64

struct address_entry {
	struct name_address address;
	union name_sockaddr aliases[ADDRESS_ALIASES_MAX];
	size_t n;
	bool unlisted; /* not for the registry: only its peer uses the address, and is informed directly */
};

/* -EAFNOSUPPORT: not an internet address. */
must_check int address_entry_key(const struct name_address *address, char key[ADDRESS_KEY_MAX]);
/* Parses key and value; of a removed entry only the key. -EINVAL: malformed. */
must_check int address_entry_parse(const Pbeam__RegistryEntry *entry, struct address_entry *out);
/* Packs the value; the caller frees out->data. */
must_check int address_entry_pack(const struct address_entry *entry, ProtobufCBinaryData *out);
/* Fills in the aliases of a name. A wildcard has all addresses of its host, from `info` (may be NULL), and
 * the loopback address. `v6_only`: an IPv6 wildcard that accepts no IPv4. */
void address_entry_name(struct address_entry *entry, const Pbeam__HostInfo *info, bool v6_only);
/* Parses "10.0.0.1" or "2001:db8::1". False: not an address. */
bool address_from_text(const char *text, uint16_t port, union name_sockaddr *out);
bool address_is_wildcard(const union name_sockaddr *address);
bool address_is_loopback(const union name_sockaddr *address);
uint16_t address_port(const union name_sockaddr *address);
void address_set_port(union name_sockaddr *address, uint16_t port);
socklen_t address_size(const union name_sockaddr *address);
/* Converts an address for a socket of this family; false: there is no such form. */
bool address_in_family(union name_sockaddr *address, int family);

/* ---- address_register.c: requests to pbeamd, blocking ---- */
/* This host's address in the cluster, with port 0. False: there is none. */
bool address_own(union name_sockaddr *out);
/* The address where other hosts reach a bound socket; false: there is none. */
bool address_reached(int fd, union name_sockaddr *out);
/* Checks a name that a program of this host is about to bind: -EADDRINUSE when a moved socket has it.
 * `version` is for address_register(). */
must_check int address_free(struct names *names, const struct name_address *address, uint64_t *version,
			    struct err *err);
/* After a rollback: updates the entry of a socket that is bound here again under another address than its
 * name. */
must_check int address_renew(struct names *names, int protocol, const union name_sockaddr *name,
			     const char *born, int fd, struct err *err);
/* Removes the entry, if any, of an address whose socket is on its own host again. */
must_check int address_forget(const struct name_address *address, struct err *err);
/* Writes entry->address, bound here, to the registry, and fills in its aliases. */
must_check int address_register(struct address_entry *entry, bool v6_only, uint64_t version, struct err *err);

#endif
