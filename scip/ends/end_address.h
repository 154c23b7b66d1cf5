/*
 * Bound addresses that move. A socket that listens, or is bound and not connected, keeps the name that it was
 * bound by; where it really is on the target is the target's to choose, and goes into the registry in the one
 * step that commits the migration (namespace/address_entry.h). The target binds it where its name says only
 * if that is an address of its own; else at any free port, so that what is born there finds its own ports
 * free. A name on the loopback stays on the loopback: only programs of the same host go there directly.
 *
 *   source  address_leaves()   frozen, each that goes: its name into its record
 *   target  address_place()    where to bind it
 *           address_arrived()  where it is now                 -> rendezvous
 *   source  record_commit() with source->addresses
 *
 * Listening sockets and those of UDP have a bridge as well, for callers outside the name space. The provider
 * here is for those that need none.
 */
#ifndef SCIP_MIGRATE_ADDRESS_H
#define SCIP_MIGRATE_ADDRESS_H

#include "scip/ends/external.h"
#include "scip/object/inet.h"

extern const struct external_provider address_provider;

/* `object` is the record of a bound TCP or UDP socket of process `vpid`. */
must_check int address_leaves(struct migrate_source *source, Pbeam__Object *object, struct vpid vpid,
			      struct err *err);
/* Bound sockets in the image of a job that is rolled back on another host than where it was saved
 * (manifest->host->place): their names, and the provider's mark. */
must_check int address_mark_image(Pbeam__Manifest *manifest, struct err *err);
/* As a provider's `dump`, of a socket that is bound and not connected, with `listening` of one that listens
 * too. */
must_check int address_dump(struct migrate_source *source, struct object_dump *dump,
			    const struct object_source *of, bool listening, Pbeam__Object *out,
			    struct err *err);
/* Datagrams that wait have the names of their senders, not what stands in for these here. */
must_check int address_name_senders(struct migrate_source *source, Pbeam__UdpSocket *socket, struct err *err);
/* Where the socket of this record, whose name was bound, is to be bound here. */
void address_place(const struct migrate_target *target, const Pbeam__Object *object,
		   struct inet_address *out);
/* It is bound: the name table has what it goes by, the source hears of it. */
must_check int address_arrived(struct migrate_target *target, const Pbeam__Object *object, int fd,
			       struct err *err);

#endif
