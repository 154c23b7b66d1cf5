#include "scip/precopy/page_receiver.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <unistd.h>
#include <zstd.h>

#include "base/log.h"
#include "channel/channel.h"
#include "proto/frame.h"
#include "proto/message.h"
#include "scip/precopy/delta.h"
#include "scip/precopy/page_stream.h"
#include "scip/rebuild/precopied.h"

enum { PAGE = DELTA_PAGE, PAGES = PAGE_STREAM_BATCH / PAGE };

/* One of the streams. Those besides the migration's channel have a thread. */
struct receiving {
	struct page_stream stream;
	struct precopied *precopied;
	uint8_t *raw, *packed; /* PAGE_STREAM_BATCH each */
	ZSTD_DCtx *zstd;
	struct precopied_piece pieces[PAGES];
	pthread_t thread;
};

struct page_receiver {
	struct precopied *precopied;
	struct receiving *channel; /* of the migration */
	int expecting;		   /* where further streams come from, -1 for none */
	struct receiving *v[PAGE_STREAMS_MAX];
	unsigned n;
};

static const uint8_t zeroes[PAGE];

/* Its stream has been closed or released. */
static void free_receiving(struct receiving *receiving)
{
	if (!receiving)
		return;
	free(receiving->raw);
	free(receiving->packed);
	ZSTD_freeDCtx(receiving->zstd);
	free(receiving);
}

/* Takes `fd`, unless it returns NULL: out of memory. */
static struct receiving *new_receiving(int fd, struct precopied *precopied)
{
	struct receiving *receiving = calloc(1, sizeof(*receiving));

	if (!receiving)
		return NULL;
	receiving->precopied = precopied;
	receiving->raw = malloc(PAGE_STREAM_BATCH);
	receiving->packed = malloc(PAGE_STREAM_BATCH);
	receiving->zstd = ZSTD_createDCtx();
	page_stream_init(&receiving->stream, fd);
	if (receiving->raw && receiving->packed && receiving->zstd)
		return receiving;
	free_receiving(receiving);
	return NULL;
}

/* ---- one message ---- */

static int refuse_pages(struct err *err)
{
	return err_set(err, -EPROTO, "malformed pages from the source");
}

static int take_bulk(struct receiving *receiving, const Pbeam__MigratePages *pages, struct err *err)
{
	size_t n;
	int r;

	if (pages->raw > PAGE_STREAM_BATCH || pages->bytes > pages->raw ||
	    (!pages->compressed && pages->bytes != pages->raw))
		return refuse_pages(err);
	r = page_stream_take_bulk(&receiving->stream, pages->compressed ? receiving->packed : receiving->raw,
				  pages->bytes, err);
	if (r < 0 || !pages->compressed)
		return r;
	n = ZSTD_decompressDCtx(receiving->zstd, receiving->raw, pages->raw, receiving->packed, pages->bytes);
	return ZSTD_isError(n) || n != pages->raw ? refuse_pages(err) : 0;
}

/* Writes runs of pages, from `data` or all zeroes; advances *at over the data that they take. */
static int put_runs(struct receiving *receiving, size_t index, Pbeam__Pages *const *runs, size_t n,
		    const uint8_t *data, uint64_t *at, uint64_t raw, struct err *err)
{
	size_t npieces = 0;
	int r = 0;

	for (size_t i = 0; i < n && r == 0; i++) {
		uint64_t left = runs[i]->count, address = runs[i]->address;

		if (left > PAGES || (data && left * PAGE > raw - *at))
			return refuse_pages(err);
		while (left && r == 0) {
			const uint64_t count = data ? left : 1;

			receiving->pieces[npieces++] =
				(struct precopied_piece){address, count * PAGE, data ? data + *at : zeroes};
			*at += data ? count * PAGE : 0;
			address += count * PAGE;
			left -= count;
			if (npieces == PAGES) {
				r = precopied_write(receiving->precopied, index, receiving->pieces, npieces,
						    err);
				npieces = 0;
			}
		}
	}
	return r < 0 || !npieces
		       ? r
		       : precopied_write(receiving->precopied, index, receiving->pieces, npieces, err);
}

/* Applies differences to the pages that are here. The buffer of the compressed bytes, which are not needed
 * any more, holds these pages. */
static int put_deltas(struct receiving *receiving, size_t index, const Pbeam__MigratePages *pages,
		      uint64_t at, struct err *err)
{
	const size_t n = pages->n_deltas;
	int r;

	if (n > PAGES)
		return refuse_pages(err);
	for (size_t i = 0; i < n; i++)
		receiving->pieces[i] = (struct precopied_piece){pages->deltas[i]->address, PAGE,
								receiving->packed + i * PAGE};
	r = n ? precopied_read(receiving->precopied, index, receiving->pieces, n, receiving->packed, err) : 0;
	for (size_t i = 0; i < n && r == 0; i++) {
		const uint32_t len = pages->deltas[i]->bytes;

		if (len > pages->raw - at ||
		    delta_apply(receiving->packed + i * PAGE, receiving->raw + at, len) < 0)
			return refuse_pages(err);
		at += len;
	}
	return r < 0 || !n ? r : precopied_write(receiving->precopied, index, receiving->pieces, n, err);
}

static int write_pages(struct receiving *receiving, const struct frame *frame, struct err *err)
{
	Pbeam__MigratePages *pages = (void *)frame_unpack(frame, &pbeam__migrate_pages__descriptor, err);
	int index = pages ? precopied_find(receiving->precopied, pages->vpid, pages->shared_id) : -1, r;
	uint64_t at = 0;

	if (!pages)
		return -EPROTO;
	r = index < 0 ? err_set(err, -EPROTO, "unexpected pages for vpid %d, shared memory %u", pages->vpid,
				pages->shared_id)
		      : take_bulk(receiving, pages, err);
	if (r == 0)
		r = put_runs(receiving, (size_t)index, pages->pages, pages->n_pages, receiving->raw, &at,
			     pages->raw, err);
	if (r == 0)
		r = put_deltas(receiving, (size_t)index, pages, at, err);
	if (r == 0)
		r = put_runs(receiving, (size_t)index, pages->zeroes, pages->n_zeroes, NULL, &at, 0, err);
	message_free(pages);
	return r;
}

static int take_round(struct receiving *receiving, const struct frame *frame, struct err *err)
{
	Pbeam__MigrateRound *round = (void *)frame_unpack(frame, &pbeam__migrate_round__descriptor, err);
	int r = round ? page_stream_send(&receiving->stream, PBEAM__CHANNEL_MESSAGE__MIGRATE_ROUND,
					 &round->base, err)
		      : -EPROTO;

	if (r == 0)
		r = page_stream_flush(&receiving->stream, err);
	message_free(round);
	return r;
}

static int take_pages_frame(struct receiving *receiving, const struct frame *frame, struct err *err)
{
	if (frame->type == PBEAM__CHANNEL_MESSAGE__MIGRATE_PAGES)
		return write_pages(receiving, frame, err);
	if (frame->type == PBEAM__CHANNEL_MESSAGE__MIGRATE_ROUND)
		return take_round(receiving, frame, err);
	return err_set(err, -EPROTO, "unexpected message %u", frame->type);
}

int page_receiver_take(struct page_receiver *receiver, const struct frame *frame, struct err *err)
{
	return take_pages_frame(receiver->channel, frame, err);
}

/* ---- the other streams ---- */

/* Reports a failure to the source, which gives up. A stream that just ends is noticed by the source itself.
 */
static void *receiver_thread(void *arg)
{
	struct receiving *receiving = arg;
	struct err err = ERR_INIT;
	int r;

	prctl(PR_SET_NAME, "scip-receiver");
	r = page_stream_secure(&receiving->stream, TLS_SERVER, &err);
	while (r == 0) {
		struct frame frame = {0};

		r = page_stream_take_any(&receiving->stream, &frame, &err);
		if (r < 0)
			break;
		r = take_pages_frame(receiving, &frame, &err);
		if (r < 0)
			page_stream_fail(&receiving->stream, &err);
		frame_free(&frame);
	}
	log_debug("migrate: a stream has ended: %s", err.text);
	page_stream_stop(&receiving->stream); /* the source is to notice */
	return NULL;
}

int page_receiver_expect(struct page_receiver *receiver, uint8_t cookie[16], struct err *err)
{
	int r;

	if (getrandom(cookie, CHANNEL_COOKIE_SIZE, 0) != CHANNEL_COOKIE_SIZE)
		return err_sys(err, "make a cookie");
	r = channel_expect(cookie, err);
	if (r < 0)
		return r;
	receiver->expecting = r;
	return 0;
}

static int start_receiver_thread(struct receiving *receiving)
{
	sigset_t all, before;
	int r;

	sigfillset(&all); /* signals are for the main thread */
	pthread_sigmask(SIG_SETMASK, &all, &before);
	r = pthread_create(&receiving->thread, NULL, receiver_thread, receiving);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return -r;
}

/* A stream that cannot be admitted is closed: the source continues without it. */
static void admit_stream(struct page_receiver *receiver)
{
	struct receiving *receiving;
	struct err err = ERR_INIT;
	int channel = channel_take(receiver->expecting, 0, &err);

	if (channel == -EPIPE) {
		close(receiver->expecting);
		receiver->expecting = -1;
	}
	if (channel < 0) {
		log_info("migrate: a stream did not come: %s", err.text);
		return;
	}
	receiving = new_receiving(channel, receiver->precopied);
	if (!receiving) {
		close(channel);
		return;
	}
	if (start_receiver_thread(receiving) == 0) {
		receiver->v[receiver->n++] = receiving;
		return;
	}
	page_stream_close(&receiving->stream);
	free_receiving(receiving);
}

int page_receiver_wait(struct page_receiver *receiver, struct err *err)
{
	for (;;) {
		struct pollfd fds[2] = {
			{.fd = receiver->channel->stream.fd, .events = POLLIN},
			{.fd = receiver->n < PAGE_STREAMS_MAX ? receiver->expecting : -1, .events = POLLIN}};

		if (poll(fds, 2, -1) < 0 && errno != EINTR)
			return err_sys(err, "wait for pages");
		if (fds[1].revents)
			admit_stream(receiver);
		else if (fds[0].revents)
			return 0;
	}
}

/* ---- beginning and end ---- */

struct page_receiver *page_receiver_new(int channel, struct precopied *precopied)
{
	struct page_receiver *receiver = calloc(1, sizeof(*receiver));

	if (!receiver)
		return NULL;
	receiver->precopied = precopied;
	receiver->expecting = -1;
	receiver->channel = new_receiving(channel, precopied);
	if (!receiver->channel) {
		free(receiver);
		return NULL;
	}
	return receiver;
}

void page_receiver_free(struct page_receiver *receiver)
{
	if (!receiver)
		return;
	for (unsigned i = 0; i < receiver->n; i++) {
		page_stream_stop(&receiver->v[i]->stream);
		pthread_join(receiver->v[i]->thread, NULL);
		page_stream_close(&receiver->v[i]->stream);
		free_receiving(receiver->v[i]);
	}
	if (receiver->expecting >= 0)
		close(receiver->expecting);
	page_stream_release(&receiver->channel->stream);
	free_receiving(receiver->channel);
	free(receiver);
}
