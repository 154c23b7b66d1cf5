/*
 * What was sent of a piece of memory: a digest of each page, and the contents of the pages that were sent
 * more than once, so that the next time only the difference is sent.
 *
 * No two threads note the same page at the same time: each page is reported once in a round, and a round
 * begins when all pages of the last one are in place.
 */
#ifndef SCIP_PRECOPY_NOTES_H
#define SCIP_PRECOPY_NOTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

struct page_note;
struct notes {
	struct page_note *v; /* one per page; NULL: nothing is noted */
	size_t n;
};
/* Contents of pages, for all pieces of memory together. */
struct note_store {
	uint8_t *pages;
	uint32_t room;
	uint32_t used; /* atomic */
};

void notes_init(struct notes *notes, uint64_t bytes);
void notes_free(struct notes *notes);
/* Makes as much room for contents as the machine's memory allows; a failure leaves an empty store. */
void note_store_init(struct note_store *store);
void note_store_free(struct note_store *store);

enum note_verdict {
	NOTE_WHOLE, /* the page must be sent */
	NOTE_SAME,  /* the target has it */
	NOTE_DELTA, /* *len bytes of `delta` must be sent */
};
/* Decides what to send of page number `i`, whose contents are `page`, and notes it as sent. `delta` has room
 * for DELTA_MAX bytes. */
enum note_verdict notes_take(struct notes *notes, struct note_store *store, size_t i, const void *page,
			     uint8_t *delta, size_t *len);

#endif
