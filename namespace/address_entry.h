/*
 * Entries address/... of the registry: where a transport address is that is not where its name says any more.
 * The key has the name as it was bound, "address/tcp/10.0.0.1:5000", "address/udp/[2001:db8::1]:53"; of
 * wildcards and the loopback, which every host has, with the host of birth: "address/tcp/0.0.0.0:80@a".
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
	bool unlisted; /* not for the registry: only its peer calls it, which is told */
};

/* -EAFNOSUPPORT: no internet address. */
must_check int address_entry_key(const struct name_address *address, char key[ADDRESS_KEY_MAX]);
/* Key and value, or of one that was removed the key. -EINVAL: malformed. */
must_check int address_entry_parse(const Pbeam__RegistryEntry *entry, struct address_entry *out);
/* The value. *out is malloc'd. */
must_check int address_entry_pack(const struct address_entry *entry, ProtobufCBinaryData *out);
/* What a name is called by, from the addresses of the host of its birth: all of them, and the loopback, for a
 * wildcard. `info` may be NULL. `v6_only`: a wildcard of IPv6 that takes no IPv4. */
void address_entry_name(struct address_entry *entry, const Pbeam__HostInfo *info, bool v6_only);
/* "10.0.0.1" or "2001:db8::1". False: it is none. */
bool address_from_text(const char *text, uint16_t port, union name_sockaddr *out);
bool address_is_wildcard(const union name_sockaddr *address);
bool address_is_loopback(const union name_sockaddr *address);
uint16_t address_port(const union name_sockaddr *address);
void address_set_port(union name_sockaddr *address, uint16_t port);
socklen_t address_size(const union name_sockaddr *address);
/* In the form that a socket of this family takes; false: there is none. */
bool address_in_family(union name_sockaddr *address, int family);

/* ---- address_register.c: asks pbeamd, blocking ---- */
/* The address by which the other hosts know this one, with port 0. False: there is none. */
bool address_own(union name_sockaddr *out);
/* Where others reach a bound socket; false: nowhere. */
bool address_reached(int fd, union name_sockaddr *out);
/* A program of this host is about to bind this name: -EADDRINUSE when another's is called so. `version` is
 * what address_register() wants. */
must_check int address_free(struct names *names, const struct name_address *address, uint64_t *version,
			    struct err *err);
/* After a rollback: a socket is bound here again that goes by another name. */
must_check int address_renew(struct names *names, int protocol, const union name_sockaddr *name,
			     const char *born, int fd, struct err *err);
/* It is where its name says: the entry goes, if there is one. */
must_check int address_forget(const struct name_address *address, struct err *err);
/* Writes entry->address, bound here, into the registry, and what it is called by into `entry`. */
must_check int address_register(struct address_entry *entry, bool v6_only, uint64_t version, struct err *err);

#endif
