#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>
#include <zstd.h>

#include "base/log.h"
#include "channel/channel.h"
#include "proto/frame.h"
#include "proto/message.h"
#include "scip/migrate/migrate.h"
#include "scip/migrate/pages/delta.h"
#include "scip/migrate/pages/lane_wire.h"
#include "scip/migrate/pages/lanes.h"

enum { PAGE = DELTA_PAGE, PAGES = LANES_BATCH / PAGE };

struct lane_taker {
	struct lane_wire *wire;
	struct lane_wire channel; /* of the migration: what `wire` is then */
	struct restore_premade *premade;
	uint8_t *raw, *packed; /* LANES_BATCH each */
	ZSTD_DCtx *zstd;
	struct restore_piece pieces[PAGES];
};

static const uint8_t zeroes[PAGE];

static struct lane_taker *new_taker(struct lane_wire *wire, struct restore_premade *premade)
{
	struct lane_taker *taker = calloc(1, sizeof(*taker));

	if (!taker)
		return NULL;
	taker->wire = wire;
	taker->premade = premade;
	taker->raw = malloc(LANES_BATCH);
	taker->packed = malloc(LANES_BATCH);
	taker->zstd = ZSTD_createDCtx();
	if (!taker->raw || !taker->packed || !taker->zstd) {
		lane_taker_free(taker);
		return NULL;
	}
	return taker;
}

struct lane_taker *lane_taker_new(int channel, struct restore_premade *premade)
{
	struct lane_taker *taker = new_taker(NULL, premade);

	if (taker) {
		taker->channel.channel = channel;
		taker->wire = &taker->channel;
	}
	return taker;
}

void lane_taker_free(struct lane_taker *taker)
{
	if (!taker)
		return;
	free(taker->raw);
	free(taker->packed);
	ZSTD_freeDCtx(taker->zstd);
	free(taker);
}

/* ---- one message ---- */

static int bad(struct err *err)
{
	return err_set(err, -EPROTO, "the other host has sent pages that are none");
}

static int take_bulk(struct lane_taker *taker, const Pbeam__MigratePages *pages, struct err *err)
{
	size_t n;
	int r;

	if (pages->raw > LANES_BATCH || pages->bytes > pages->raw ||
	    (!pages->compressed && pages->bytes != pages->raw))
		return bad(err);
	r = lane_wire_take_bytes(taker->wire, pages->compressed ? taker->packed : taker->raw, pages->bytes,
				 err);
	if (r < 0 || !pages->compressed)
		return r;
	n = ZSTD_decompressDCtx(taker->zstd, taker->raw, pages->raw, taker->packed, pages->bytes);
	return ZSTD_isError(n) || n != pages->raw ? bad(err) : 0;
}

/* Runs of pages, from `data` on or all of zeroes; *at moves over what they have of the data. */
static int put_runs(struct lane_taker *taker, size_t index, Pbeam__Pages *const *runs, size_t n,
		    const uint8_t *data, uint64_t *at, uint64_t raw, struct err *err)
{
	size_t npieces = 0;
	int r = 0;

	for (size_t i = 0; i < n && r == 0; i++) {
		uint64_t left = runs[i]->count, address = runs[i]->address;

		if (left > PAGES || (data && left * PAGE > raw - *at))
			return bad(err);
		while (left && r == 0) {
			const uint64_t count = data ? left : 1;

			taker->pieces[npieces++] =
				(struct restore_piece){address, count * PAGE, data ? data + *at : zeroes};
			*at += data ? count * PAGE : 0;
			address += count * PAGE;
			left -= count;
			if (npieces == PAGES) {
				r = restore_premade_write(taker->premade, index, taker->pieces, npieces, err);
				npieces = 0;
			}
		}
	}
	return r < 0 || !npieces ? r
				 : restore_premade_write(taker->premade, index, taker->pieces, npieces, err);
}

/* The pages as they are here, with what has changed. The compressed bytes are not needed any more: their
 * room is the pages'. */
static int put_deltas(struct lane_taker *taker, size_t index, const Pbeam__MigratePages *pages, uint64_t at,
		      struct err *err)
{
	const size_t n = pages->n_deltas;
	int r;

	if (n > PAGES)
		return bad(err);
	for (size_t i = 0; i < n; i++)
		taker->pieces[i] =
			(struct restore_piece){pages->deltas[i]->address, PAGE, taker->packed + i * PAGE};
	r = n ? restore_premade_read(taker->premade, index, taker->pieces, n, taker->packed, err) : 0;
	for (size_t i = 0; i < n && r == 0; i++) {
		const uint32_t len = pages->deltas[i]->bytes;

		if (len > pages->raw - at || delta_apply(taker->packed + i * PAGE, taker->raw + at, len) < 0)
			return bad(err);
		at += len;
	}
	return r < 0 || !n ? r : restore_premade_write(taker->premade, index, taker->pieces, n, err);
}

static int take_pages(struct lane_taker *taker, const struct frame *frame, struct err *err)
{
	Pbeam__MigratePages *pages = (void *)frame_unpack(frame, &pbeam__migrate_pages__descriptor, err);
	int index = pages ? restore_premade_find(taker->premade, pages->vpid, pages->shared_id) : -1, r;
	uint64_t at = 0;

	if (!pages)
		return -EPROTO;
	r = index < 0 ? err_set(err, -EPROTO,
				"pages came for vpid %d, shared memory %u, which are not expected",
				pages->vpid, pages->shared_id)
		      : take_bulk(taker, pages, err);
	if (r == 0)
		r = put_runs(taker, (size_t)index, pages->pages, pages->n_pages, taker->raw, &at, pages->raw,
			     err);
	if (r == 0)
		r = put_deltas(taker, (size_t)index, pages, at, err);
	if (r == 0)
		r = put_runs(taker, (size_t)index, pages->zeroes, pages->n_zeroes, NULL, &at, 0, err);
	message_free(pages);
	return r;
}

static int take_round(struct lane_taker *taker, const struct frame *frame, struct err *err)
{
	Pbeam__MigrateRound *round = (void *)frame_unpack(frame, &pbeam__migrate_round__descriptor, err);
	int r = round ? lane_wire_send(taker->wire, PBEAM__CHANNEL_MESSAGE__MIGRATE_ROUND, &round->base, err)
		      : -EPROTO;

	if (r == 0)
		r = lane_wire_flush(taker->wire, err);
	message_free(round);
	return r;
}

int lane_take(struct lane_taker *taker, const struct frame *frame, struct err *err)
{
	if (frame->type == PBEAM__CHANNEL_MESSAGE__MIGRATE_PAGES)
		return take_pages(taker, frame, err);
	if (frame->type == PBEAM__CHANNEL_MESSAGE__MIGRATE_ROUND)
		return take_round(taker, frame, err);
	return err_set(err, -EPROTO, "message %u came when none such was to", frame->type);
}

/* ---- the other lanes ---- */

struct guest {
	pthread_t thread;
	struct lane_wire wire;
	struct lane_taker *taker;
};

struct lane_guests {
	struct restore_premade *premade;
	int expecting;
	struct guest v[LANES_MAX];
	unsigned n;
};

/* The source hears of what fails here, and gives up; if the lane just ends it has seen that itself. */
static void *run(void *arg)
{
	struct guest *guest = arg;
	struct err err = ERR_INIT;
	int r;

	prctl(PR_SET_NAME, "scip-lane");
	r = lane_wire_send(&guest->wire, PBEAM__CHANNEL_MESSAGE__MIGRATE_READY, NULL, &err);
	if (r == 0)
		r = lane_wire_flush(&guest->wire, &err);
	while (r == 0) {
		struct frame frame = {0};

		r = lane_wire_take_any(&guest->wire, &frame, &err);
		if (r == 0) {
			r = lane_take(guest->taker, &frame, &err);
			if (r < 0)
				lane_wire_fail(&guest->wire, &err);
			frame_free(&frame);
		}
	}
	log_debug("migrate: a stream has ended: %s", err.text);
	shutdown(guest->wire.channel, SHUT_RDWR);
	return NULL;
}

int lane_guests_open(struct lane_guests **out, struct restore_premade *premade, uint8_t cookie[16],
		     struct err *err)
{
	struct lane_guests *guests = calloc(1, sizeof(*guests));
	int r = guests && getrandom(cookie, CHANNEL_COOKIE_SIZE, 0) == CHANNEL_COOKIE_SIZE
			? channel_expect(cookie, err)
			: -ENOMEM;

	if (r < 0) {
		free(guests);
		return r;
	}
	guests->premade = premade;
	guests->expecting = r;
	*out = guests;
	return 0;
}

/* What cannot be taken is not opened: the source does without. */
static void take_guest(struct lane_guests *guests)
{
	struct guest *guest = &guests->v[guests->n];
	struct err err = ERR_INIT;
	sigset_t all, before;
	int channel = channel_take(guests->expecting, 0, &err), r;

	if (channel == -EPIPE) {
		close(guests->expecting);
		guests->expecting = -1;
	}
	if (channel < 0) {
		log_info("migrate: a stream did not come: %s", err.text);
		return;
	}
	*guest = (struct guest){.wire.channel = channel};
	r = lane_wire_take_over(&guest->wire, &err);
	if (r == 0)
		guest->taker = new_taker(&guest->wire, guests->premade);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	r = guest->taker ? pthread_create(&guest->thread, NULL, run, guest) : ENOMEM;
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (r == 0) {
		guests->n++;
		return;
	}
	lane_taker_free(guest->taker);
	lane_wire_close(&guest->wire);
}

int lane_guests_wait(struct lane_guests *guests, int channel, struct err *err)
{
	for (;;) {
		struct pollfd fds[2] = {
			{.fd = channel, .events = POLLIN},
			{.fd = guests->n < LANES_MAX ? guests->expecting : -1, .events = POLLIN}};

		if (poll(fds, 2, -1) < 0 && errno != EINTR)
			return err_sys(err, "wait for pages");
		if (fds[1].revents)
			take_guest(guests);
		else if (fds[0].revents)
			return 0;
	}
}

void lane_guests_close(struct lane_guests *guests)
{
	if (!guests)
		return;
	for (unsigned i = 0; i < guests->n; i++) {
		shutdown(guests->v[i].wire.channel, SHUT_RDWR);
		pthread_join(guests->v[i].thread, NULL);
		lane_taker_free(guests->v[i].taker);
		lane_wire_close(&guests->v[i].wire);
	}
	if (guests->expecting >= 0)
		close(guests->expecting);
	free(guests);
}
