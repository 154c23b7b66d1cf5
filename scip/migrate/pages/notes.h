/*
 * What was sent of a piece of memory: a digest of each page, and the contents of those that were sent more
 * than once, so that the next time only the difference goes.
 *
 * Nobody notes two things of the same page at the same time: each page is told once in a round, and a round
 * begins when all of the last one is in its place.
 */
#ifndef SCIP_MIGRATE_NOTES_H
#define SCIP_MIGRATE_NOTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

struct page_note;
struct notes {
	struct page_note *v; /* one for each page, NULL: nothing is noted */
	size_t n;
};
/* Contents of pages, for all pieces together. */
struct note_store {
	uint8_t *pages;
	uint32_t room;
	uint32_t used; /* atomic */
};

void notes_init(struct notes *notes, uint64_t bytes);
void notes_free(struct notes *notes);
/* Room for contents as the machine's memory allows; none is an empty store. */
void note_store_init(struct note_store *store);
void note_store_free(struct note_store *store);

enum note_verdict {
	NOTE_WHOLE, /* the page is to be sent */
	NOTE_SAME,  /* it is there already */
	NOTE_DELTA, /* *len bytes of `delta` are to be sent */
};
/* What is to be sent of page number `i`, whose contents these are; it is noted as sent. `delta` has room for
 * DELTA_MAX. */
enum note_verdict notes_take(struct notes *notes, struct note_store *store, size_t i, const void *page,
			     uint8_t *delta, size_t *len);

#endif
