/*
 * The target's half of sending pages (page_sender.h): pages are written straight into the memory of the
 * pre-copied processes. The caller reads the migration's channel and passes frames with pages on; each
 * further stream has a thread of its own.
 */
#ifndef SCIP_PRECOPY_PAGE_RECEIVER_H
#define SCIP_PRECOPY_PAGE_RECEIVER_H

#include <stdint.h>

#include "base/err.h"

struct frame;
struct precopied;
struct page_receiver;

/* For the migration's channel, which remains the caller's. NULL when out of memory. */
struct page_receiver *page_receiver_new(int channel, struct precopied *precopied);
/* Waits for the threads to end; cuts off streams that are still open. */
void page_receiver_free(struct page_receiver *receiver);
/* Admits further streams, which come with the cookie. 0 or -errno. */
must_check int page_receiver_expect(struct page_receiver *receiver, uint8_t cookie[16], struct err *err);
/* Blocks until the channel is readable; admits streams meanwhile. 0 or -errno. */
must_check int page_receiver_wait(struct page_receiver *receiver, struct err *err);
/* Takes MIGRATE_PAGES, with the bulk data behind it, or MIGRATE_ROUND from the channel. 0 or -errno. */
must_check int page_receiver_take(struct page_receiver *receiver, const struct frame *frame, struct err *err);

#endif
