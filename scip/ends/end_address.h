/*
 * Bound addresses of migrated sockets. A socket that listens, or is bound and not connected, keeps the
 * address by which programs know it (its name). The target chooses the real address, which is stored in the
 * registry by the transaction that commits the migration (namespace/address_entry.h). The target binds the
 * name itself only if it is an address of the target; otherwise it binds any free port, so that programs
 * started on the target find their ports free. A loopback name is bound on the loopback: only programs of the
 * same host connect to it directly.
 *
 *   source  address_leaves()   frozen; stores the name in the socket's record
 *   target  address_restore()  chooses the real address
 *           address_arrived()  reports the real address        -> rendezvous
 *   source  record_commit() with source->addresses
 *
 * Listening and UDP sockets also have a bridge, for peers outside the name space. The provider of this file
 * is for sockets that need no bridge.
 */
#ifndef SCIP_ENDS_END_ADDRESS_H
#define SCIP_ENDS_END_ADDRESS_H

#include "scip/ends/external.h"
#include "scip/object/inet.h"

extern const struct external_provider address_provider;

/* Adds a bound TCP or UDP socket of process `vpid` to source->addresses, and its name to `object`. */
must_check int address_leaves(struct migrate_source *source, Pbeam__Object *object, struct vpid vpid,
			      struct err *err);
/* Names and marks the bound sockets in the image of a job that is rolled back on another host than the one
 * where it was saved (manifest->host->place). */
must_check int address_mark_image(Pbeam__Manifest *manifest, struct err *err);
/* Implements a provider's `dump` for bound sockets that are not connected, with `listening` also for sockets
 * that listen. */
must_check int address_dump(struct migrate_source *source, struct object_dump *dump,
			    const struct object_source *of, bool listening, Pbeam__Object *out,
			    struct err *err);
/* Replaces the source addresses of queued datagrams, which are real on this host, by the senders' names. */
must_check int address_name_senders(struct migrate_source *source, Pbeam__UdpSocket *socket, struct err *err);
/* Makes the bound socket of the record, at the address that this host chooses for its name. */
must_check int address_restore(const struct migrate_target *target, struct object_restore *restore,
			       const Pbeam__Object *object, int *fd, struct err *err);
/* Records the name of a socket that is now bound in the name table, and its real address for the source. */
must_check int address_arrived(struct migrate_target *target, const Pbeam__Object *object, int fd,
			       struct err *err);

#endif
