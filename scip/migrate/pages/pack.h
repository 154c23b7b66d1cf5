/* A batch of pages as one message: what is there already is left out, the rest compressed if that pays. */
#ifndef SCIP_MIGRATE_PACK_H
#define SCIP_MIGRATE_PACK_H

#include "proto/cluster.pb-c.h"
#include "scip/migrate/pages/track.h"

struct pack;
/* NULL: no memory. */
struct pack *pack_new(void);
void pack_free(struct pack *pack);

struct packed {
	Pbeam__MigratePages message;
	const uint8_t *data; /* message.bytes of it */
	bool empty;	     /* nothing is to be sent */
};
/* Reads at most TRACK_RUNS pieces of together at most PAGE_STREAM_BATCH bytes. *out is good until the next
 * call.
 */
void pack_runs(struct pack *pack, const struct tracked *t, struct track_run *runs, size_t n,
	       struct note_store *store, struct packed *out);
/* So many bytes took so long to be sent: whether compressing pays goes by it. */
void pack_sent(struct pack *pack, uint64_t bytes, uint64_t ns);

#endif
