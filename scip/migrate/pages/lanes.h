/*
 * Pages on their way: several connections at once, each with a thread at either end.
 *
 * The source's main thread tells what was written and puts it together in batches; whoever of the threads is
 * free reads a batch from the process, leaves out what is there already, compresses it if that pays, and
 * sends it. At the end of a round each of them hears from its other end that everything is in its place
 * (MIGRATE_ROUND), and only then the next round begins: so a page never meets an older one of itself, and how
 * long a round took is how long it took to arrive.
 *
 * The first lane is the channel of the migration itself. Where there is much to send there are others,
 * channels of kind SESSION that are opened while the first is at work already. Their threads encrypt and
 * decrypt (channel/records.h), which takes half the time; so the first does nothing any more once another is
 * there. When one breaks the migration has failed.
 */
#ifndef SCIP_MIGRATE_LANES_H
#define SCIP_MIGRATE_LANES_H

#include "scip/migrate/pages/track.h"

struct frame;
struct restore_premade;

enum {
	LANES_MAX = 4 /* besides the channel */,
	LANES_BATCH = 1 << 20 /* bytes of pages in a message, at most */
};

/* ---- lanes_source.c ---- */
struct lanes_options {
	const char *host;
	int channel;
	const uint8_t *cookie; /* of the other lanes, 16 bytes, NULL: there are none */
	unsigned n;	       /* of these */
	uint64_t bandwidth;    /* bytes a second for all together, 0 for as much as there is */
	/* Called ten times a second or so while a round goes on. May be NULL. */
	void (*tick)(void *arg);
	void *tick_arg;
};
struct lanes_count {
	uint64_t pages; /* bytes of memory that were looked at */
	uint64_t wire;	/* bytes that were sent for them */
};
struct lanes;
must_check int lanes_open(struct lanes **out, const struct lanes_options *options, struct err *err);
/* To be sent in this round: a track_fn. Waits when too much is under way. */
must_check int lanes_put(void *lanes, struct tracked *t, struct track_range *range, uint64_t start,
			 uint64_t end);
/* What was put so far is sent: before what belongs to another process or object. */
must_check int lanes_flush(struct lanes *lanes);
/* Everything of the round is in its place there. */
must_check int lanes_finish(struct lanes *lanes, struct err *err);
struct lanes_count lanes_counted(struct lanes *lanes);
/* All threads have ended. The channel is of no use any more when a lane has failed. */
void lanes_close(struct lanes *lanes);

/* ---- lanes_target.c ---- */
struct lane_taker;
/* For the channel of the migration: its frames are the caller's business, and pages and ends of rounds among
 * them go to lane_take(). */
struct lane_taker *lane_taker_new(int channel, struct restore_premade *premade);
void lane_taker_free(struct lane_taker *taker);
must_check int lane_take(struct lane_taker *taker, const struct frame *frame, struct err *err);

/* The others, each with a thread of its own. */
struct lane_guests;
/* Its cookie is to be told to the other side. */
must_check int lane_guests_open(struct lane_guests **out, struct restore_premade *premade, uint8_t cookie[16],
				struct err *err);
/* Waits until the channel has something to be read; takes lanes that come meanwhile. */
must_check int lane_guests_wait(struct lane_guests *guests, int channel, struct err *err);
void lane_guests_close(struct lane_guests *guests);

#endif
