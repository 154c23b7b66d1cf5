/*
 * The table's addresses in two chains, by name and by real address. Private to namespace/.
 *
 * Entries are added and removed by migrations, not by calls: the chains are rebuilt at each change. A change
 * is between address_index_begin() and address_index_end(), under the table's lock. cluster->sequence is odd
 * meanwhile, and a reader that notices a change tries again.
 */
#ifndef NAMESPACE_ADDRESS_INDEX_H
#define NAMESPACE_ADDRESS_INDEX_H

#include "namespace/table.h"

/* The part of an address that is compared. `host`: the host of a loopback address; unused bytes are zero. */
struct address_key {
	uint16_t family, port;
	uint16_t protocol, host;
	uint32_t scope;
	uint8_t bytes[16];
};

/* Makes the key of an address used by a program on `host`. 0, or -EAFNOSUPPORT. */
must_check int address_key_make(int protocol, const struct sockaddr *address, uint32_t host,
				struct address_key *key);
/* Returns the entry's index + 1, 0 if there is none. Ends even if the chains change meanwhile. */
uint32_t address_index_find(const struct table_cluster *cluster, const struct address_key *key, bool real);
void address_index_begin(struct table_cluster *cluster);
void address_index_end(struct table_cluster *cluster);
void address_index_rebuild(struct table_cluster *cluster);

#endif
