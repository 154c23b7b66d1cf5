/* Packs a batch of pages into one message, without the pages that the target has, and compressed if that
 * pays. */
#ifndef SCIP_PRECOPY_PACK_H
#define SCIP_PRECOPY_PACK_H

#include "proto/cluster.pb-c.h"
#include "scip/capture/track.h"
#include "scip/precopy/notes.h"

struct pack;
/* NULL when out of memory. */
struct pack *pack_new(void);
void pack_free(struct pack *pack);

struct packed {
	Pbeam__MigratePages message;
	const uint8_t *data; /* message.bytes bytes */
	bool empty;	     /* nothing needs to be sent */
};
/* Reads and packs at most TRACK_RUNS pieces, together at most PAGE_STREAM_BATCH bytes. *out is valid until
 * the next call. */
void pack_runs(struct pack *pack, const struct tracked *t, struct track_run *runs, size_t n,
	       struct note_store *store, struct packed *out);
/* Reports how long sending took, by which pack_runs() judges whether compressing pays. */
void pack_sent(struct pack *pack, uint64_t bytes, uint64_t ns);

#endif
