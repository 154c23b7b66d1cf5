/*
 * The source's half of sending pages: several streams at once, each with a thread of its own.
 *
 * The main thread reports which pages were written and collects them in batches. A free thread reads a batch
 * from the process, leaves out the pages that the target already has, compresses the rest if that pays, and
 * sends it. At the end of a round the target confirms on each stream that everything is in place
 * (MIGRATE_ROUND), and only then the next round begins. So a page never overtakes an older copy of itself,
 * and the duration of a round is the time that its pages took to arrive.
 *
 * The first stream is the channel of the migration itself. Where there is much to send there are others:
 * channels of kind SESSION, opened while the first one is already at work, whose threads speak TLS themselves
 * (channel/tls_stream.h). That takes half the time, so the first one sends no more pages once another is
 * open. The migration fails when a stream breaks.
 */
#ifndef SCIP_PRECOPY_PAGE_SENDER_H
#define SCIP_PRECOPY_PAGE_SENDER_H

#include "scip/capture/track.h"
#include "scip/precopy/notes.h"

struct page_sender;
struct page_sender_options {
	const char *host;
	int channel;	       /* of the migration; remains the caller's */
	const uint8_t *cookie; /* 16 bytes, for further streams; NULL for none */
	unsigned n;	       /* further streams */
	uint64_t bandwidth;    /* bytes per second on all streams together, 0 for no limit */
	/* Called about ten times a second while a round is under way. May be NULL. */
	void (*tick)(void *arg);
	void *tick_arg;
};
struct page_sender_count {
	uint64_t pages; /* bytes of memory that were examined */
	uint64_t wire;	/* bytes that were sent for them */
};

/* Starts the threads. 0 or -errno. */
must_check int page_sender_open(struct page_sender **out, const struct page_sender_options *options,
				struct err *err);
/* Queues pages for this round: a track_fn. Blocks while the queue is full. 0 or -errno. */
must_check int page_sender_put(void *sender, struct tracked *t, struct track_range *range, uint64_t start,
			       uint64_t end);
/* Queues the batch that is being collected: before the pages of another process or object. 0 or -errno. */
must_check int page_sender_flush(struct page_sender *sender);
/* Ends the round: blocks until the target has everything in place. 0 or -errno. */
must_check int page_sender_finish(struct page_sender *sender, struct err *err);
struct page_sender_count page_sender_counted(struct page_sender *sender);
/* Ends the threads. After a failure the channel is of no further use. */
void page_sender_close(struct page_sender *sender);

#endif
