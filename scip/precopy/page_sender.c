#include "scip/precopy/page_sender.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#include "base/io.h"
#include "base/log.h"
#include "channel/channel.h"
#include "proto/frame.h"
#include "proto/message.h"
#include "scip/precopy/pack.h"
#include "scip/precopy/page_stream.h"

enum { QUEUE = 4, TICK_NS = 100000000, NS_PER_S = 1000000000, PATIENCE_S = 600 };
#define BURST_NS   20000000ull /* what a bandwidth limit lets through at once */
#define LINK_BYTES (1u << 20)  /* a round of fewer bytes does not measure the connection */

struct batch {
	struct tracked *t;
	struct track_run runs[TRACK_RUNS];
	size_t n;
	uint64_t bytes;
};

/* One of the sender's threads, with its stream. */
struct sending {
	struct page_sender *sender;
	pthread_t thread;
	struct page_stream stream;
	bool own;   /* not the migration's channel */
	bool dirty; /* has sent pages in this round */
	uint64_t round_bytes, round_ns;
	struct pack *pack;
	struct batch batch; /* being sent */
};

struct page_sender {
	struct page_sender_options options;
	uint8_t cookie[CHANNEL_COOKIE_SIZE];
	pthread_mutex_t lock; /* for all below */
	pthread_cond_t work;  /* wakes the threads */
	pthread_cond_t done;  /* wakes the main thread */
	struct batch queue[QUEUE];
	size_t head, count;
	struct batch making; /* collected by the main thread */
	unsigned busy;	     /* threads at work */
	unsigned open;	     /* streams besides the channel */
	unsigned round;
	bool ending, stop;
	struct err err; /* code 0: no stream has failed */
	struct page_sender_count counted;
	uint64_t next_ns; /* the bandwidth limit allows no byte before */
	struct note_store store;
	struct sending v[1 + PAGE_STREAMS_MAX];
	unsigned n;
};

/* ---- in the threads ---- */

static void fail_round(struct page_sender *s, const struct err *err)
{
	pthread_mutex_lock(&s->lock);
	if (!s->err.code)
		err_set(&s->err, err->code ? err->code : -EIO, "%s", err->text);
	pthread_cond_broadcast(&s->work);
	pthread_cond_broadcast(&s->done);
	pthread_mutex_unlock(&s->lock);
}

static bool is_sender_over(struct page_sender *s)
{
	bool over;

	pthread_mutex_lock(&s->lock);
	over = s->stop || s->err.code;
	pthread_mutex_unlock(&s->lock);
	return over;
}

/* Holds all streams together to the bandwidth limit. */
static void limit_page_rate(struct page_sender *s, uint64_t bytes)
{
	uint64_t now = io_now_ns(CLOCK_MONOTONIC), until;

	if (!s->options.bandwidth)
		return;
	pthread_mutex_lock(&s->lock);
	if (s->next_ns + BURST_NS < now)
		s->next_ns = now - BURST_NS;
	until = s->next_ns += (uint64_t)((double)bytes / (double)s->options.bandwidth * NS_PER_S);
	pthread_mutex_unlock(&s->lock);
	for (; until > now && !is_sender_over(s); now = io_now_ns(CLOCK_MONOTONIC)) {
		const uint64_t nap = until - now < TICK_NS ? until - now : TICK_NS;

		nanosleep(&(struct timespec){.tv_nsec = (long)nap}, NULL);
	}
}

/* Receives the target's reason for having closed a stream. */
static int explain_end(struct sending *sending, int r, struct err *err)
{
	struct err said = ERR_INIT;

	if (r != -EPIPE && r != -ECONNRESET)
		return r;
	if (page_stream_take(&sending->stream, PBEAM__CHANNEL_MESSAGE__MIGRATE_ROUND, NULL, NULL, &said) < 0)
		return err_set(err, said.code, "%s", said.text);
	return r;
}

static int send_packed(struct sending *sending, struct packed *packed, struct err *err)
{
	const uint64_t begin = io_now_ns(CLOCK_MONOTONIC);
	struct page_sender *s = sending->sender;
	struct page_stream *stream = &sending->stream;
	int r;

	packed->message.round = s->round; /* constant while a thread is busy */
	sending->dirty = true;
	r = page_stream_send(stream, PBEAM__CHANNEL_MESSAGE__MIGRATE_PAGES, &packed->message.base, err);
	if (r == 0)
		r = page_stream_send_bulk(stream, packed->data, packed->message.bytes, err);
	if (r == 0)
		r = page_stream_flush(stream, err);
	if (r < 0)
		return explain_end(sending, r, err);
	limit_page_rate(s, packed->message.bytes);
	if (!sending->round_bytes)
		sending->round_ns = begin;
	sending->round_bytes += packed->message.bytes;
	pack_sent(sending->pack, packed->message.bytes, io_now_ns(CLOCK_MONOTONIC) - begin);
	return 0;
}

static int send_batch(struct sending *sending, struct err *err)
{
	struct page_sender *s = sending->sender;
	struct batch *batch = &sending->batch;
	struct packed packed;
	int r = 0;

	pack_runs(sending->pack, batch->t, batch->runs, batch->n, &s->store, &packed);
	for (size_t i = 0; i < batch->n; i++)
		if (batch->runs[i].missing)
			track_report_again(batch->t, &batch->runs[i]);
	if (!packed.empty)
		r = send_packed(sending, &packed, err);
	pthread_mutex_lock(&s->lock);
	s->counted.pages += batch->bytes;
	s->counted.wire += packed.message.bytes;
	pthread_mutex_unlock(&s->lock);
	return r;
}

static int end_round(struct sending *sending, struct err *err)
{
	Pbeam__MigrateRound round = PBEAM__MIGRATE_ROUND__INIT, *answer = NULL;
	struct page_stream *stream = &sending->stream;
	int r;

	round.round = sending->sender->round;
	r = page_stream_send(stream, PBEAM__CHANNEL_MESSAGE__MIGRATE_ROUND, &round.base, err);
	if (r == 0)
		r = page_stream_flush(stream, err);
	if (r < 0)
		return explain_end(sending, r, err);
	r = page_stream_take(stream, PBEAM__CHANNEL_MESSAGE__MIGRATE_ROUND, &pbeam__migrate_round__descriptor,
			     &answer, err);
	if (r < 0)
		return r;
	if (answer->round != round.round)
		r = err_set(err, -EPROTO, "the target confirmed round %u instead of %u", answer->round,
			    round.round);
	message_free(answer);
	if (sending->round_bytes >= LINK_BYTES)
		pack_sent(sending->pack, sending->round_bytes,
			  io_now_ns(CLOCK_MONOTONIC) - sending->round_ns);
	sending->round_bytes = 0;
	return r;
}

static void take_batch(struct page_sender *s, struct batch *batch)
{
	const struct batch *next = &s->queue[s->head];

	batch->t = next->t;
	batch->n = next->n;
	batch->bytes = next->bytes;
	memcpy(batch->runs, next->runs, next->n * sizeof(next->runs[0]));
	s->head = (s->head + 1) % QUEUE;
	s->count--;
}

/* Waits for a batch (*batch) or the end of the round, with the lock held. False: there will be no more work.
 */
static bool await_work(struct sending *sending, bool *batch)
{
	struct page_sender *s = sending->sender;

	while (!s->stop && !s->err.code) {
		*batch = s->count > 0 && (sending->own || !s->open);
		if (*batch) {
			take_batch(s, &sending->batch);
			return true;
		}
		if (s->ending && sending->dirty)
			return true;
		pthread_cond_wait(&s->work, &s->lock);
	}
	return false;
}

static void send_batches(struct sending *sending)
{
	struct page_sender *s = sending->sender;
	struct err err = ERR_INIT;
	bool batch;
	int r = 0;

	pthread_mutex_lock(&s->lock);
	while (r == 0 && await_work(sending, &batch)) {
		s->busy++;
		pthread_cond_signal(&s->done); /* the queue has room */
		pthread_mutex_unlock(&s->lock);
		r = batch ? send_batch(sending, &err) : end_round(sending, &err);
		pthread_mutex_lock(&s->lock);
		s->busy--;
		if (!batch)
			sending->dirty = false;
		pthread_cond_signal(&s->done);
	}
	pthread_mutex_unlock(&s->lock);
	if (r < 0)
		fail_round(s, &err);
}

static int sending_open_stream(struct sending *sending, struct err *err)
{
	struct page_sender *s = sending->sender;
	int r = channel_open(s->options.host, PBEAM__CHANNEL_KIND__CHANNEL_SESSION, s->cookie, err);

	if (r < 0)
		return r;
	pthread_mutex_lock(&s->lock);
	sending->stream.fd = r; /* page_sender_close() stops it from here on */
	r = s->stop ? err_set(err, -ECANCELED, "it is no longer wanted") : 0;
	pthread_mutex_unlock(&s->lock);
	if (r == 0)
		r = page_stream_secure(&sending->stream, TLS_CLIENT, err);
	if (r < 0)
		return r;
	page_stream_set_timeout(&sending->stream, PATIENCE_S);
	pthread_mutex_lock(&s->lock);
	s->open++;
	pthread_mutex_unlock(&s->lock);
	return 0;
}

/* A stream that cannot be opened is left out. */
static void *sender_thread(void *arg)
{
	struct sending *sending = arg;
	struct err err = ERR_INIT;

	prctl(PR_SET_NAME, "scip-sender");
	if (!sending->own || sending_open_stream(sending, &err) == 0)
		send_batches(sending);
	else
		log_info("migrate: one stream less: %s", err.text);
	return NULL;
}

/* ---- in the main thread ---- */

/* Waits until a thread has done something or a moment has passed, with the lock held. */
static int await_threads(struct page_sender *s)
{
	struct timespec until;

	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_nsec += TICK_NS;
	if (until.tv_nsec >= NS_PER_S) {
		until.tv_sec++;
		until.tv_nsec -= NS_PER_S;
	}
	if (pthread_cond_timedwait(&s->done, &s->lock, &until) != 0 && s->options.tick) {
		pthread_mutex_unlock(&s->lock);
		s->options.tick(s->options.tick_arg);
		pthread_mutex_lock(&s->lock);
	}
	return s->err.code;
}

int page_sender_flush(struct page_sender *s)
{
	int r = 0;

	if (!s->making.n)
		return 0;
	pthread_mutex_lock(&s->lock);
	r = s->err.code;
	while (r == 0 && s->count == QUEUE)
		r = await_threads(s);
	if (r == 0) {
		s->queue[(s->head + s->count) % QUEUE] = s->making;
		s->count++;
		pthread_cond_broadcast(&s->work); /* not every stream takes it */
	}
	pthread_mutex_unlock(&s->lock);
	s->making.n = 0;
	s->making.bytes = 0;
	return r;
}

int page_sender_put(void *sender, struct tracked *t, struct track_range *range, uint64_t start, uint64_t end)
{
	struct page_sender *s = sender;
	int r = 0;

	while (start < end && r == 0) {
		const uint64_t room = PAGE_STREAM_BATCH - s->making.bytes;
		const uint64_t n = end - start < room ? end - start : room;

		s->making.t = t;
		s->making.runs[s->making.n++] =
			(struct track_run){.start = start, .end = start + n, .range = range};
		s->making.bytes += n;
		start += n;
		if (s->making.n == TRACK_RUNS || s->making.bytes == PAGE_STREAM_BATCH)
			r = page_sender_flush(s);
	}
	return r;
}

static bool is_round_open(const struct page_sender *s)
{
	if (s->count || s->busy)
		return true;
	for (unsigned i = 0; i < s->n; i++)
		if (s->v[i].dirty)
			return true;
	return false;
}

int page_sender_finish(struct page_sender *s, struct err *err)
{
	int r = page_sender_flush(s);

	pthread_mutex_lock(&s->lock);
	s->ending = true;
	pthread_cond_broadcast(&s->work);
	while (r == 0 && is_round_open(s))
		r = await_threads(s);
	s->ending = false;
	s->round++;
	r = s->err.code;
	if (r < 0)
		err_set(err, r, "%s", s->err.text);
	pthread_mutex_unlock(&s->lock);
	return r;
}

struct page_sender_count page_sender_counted(struct page_sender *s)
{
	struct page_sender_count counted;

	pthread_mutex_lock(&s->lock);
	counted = s->counted;
	pthread_mutex_unlock(&s->lock);
	return counted;
}

static int start_sender_thread(struct page_sender *s, struct sending *sending)
{
	sigset_t all, before;
	int r;

	sending->sender = s;
	sending->pack = pack_new();
	if (!sending->pack)
		return -ENOMEM;
	sigfillset(&all); /* signals are for the main thread */
	pthread_sigmask(SIG_SETMASK, &all, &before);
	r = pthread_create(&sending->thread, NULL, sender_thread, sending);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (r)
		pack_free(sending->pack);
	return -r;
}

int page_sender_open(struct page_sender **out, const struct page_sender_options *options, struct err *err)
{
	struct page_sender *s = calloc(1, sizeof(*s));
	pthread_condattr_t clock;
	int r = 0;

	if (!s)
		return err_code(err, -ENOMEM, "send pages");
	s->options = *options;
	if (options->cookie)
		memcpy(s->cookie, options->cookie, sizeof(s->cookie));
	pthread_mutex_init(&s->lock, NULL);
	pthread_condattr_init(&clock);
	pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
	pthread_cond_init(&s->work, NULL);
	pthread_cond_init(&s->done, &clock);
	pthread_condattr_destroy(&clock);
	note_store_init(&s->store);
	s->round = 1;
	for (unsigned i = 0; i <= options->n && i <= PAGE_STREAMS_MAX && r == 0; i++) {
		struct sending *sending = &s->v[i];

		sending->own = i > 0;
		page_stream_init(&sending->stream, i > 0 ? -1 : options->channel);
		if (i == 0)
			page_stream_set_timeout(&sending->stream, PATIENCE_S);
		r = start_sender_thread(s, sending);
		if (r == 0)
			s->n++;
	}
	if (!s->n) {
		page_sender_close(s);
		return err_code(err, r, "start a thread for pages");
	}
	*out = s;
	return 0;
}

void page_sender_close(struct page_sender *s)
{
	if (!s)
		return;
	pthread_mutex_lock(&s->lock);
	s->stop = true;
	pthread_cond_broadcast(&s->work);
	for (unsigned i = 0; i < s->n; i++) /* also in the middle of something */
		if (s->v[i].own || s->err.code)
			page_stream_stop(&s->v[i].stream);
	pthread_mutex_unlock(&s->lock);
	for (unsigned i = 0; i < s->n; i++) {
		pthread_join(s->v[i].thread, NULL);
		pack_free(s->v[i].pack);
		if (s->v[i].own)
			page_stream_close(&s->v[i].stream);
		else
			page_stream_release(&s->v[i].stream);
	}
	note_store_free(&s->store);
	pthread_cond_destroy(&s->work);
	pthread_cond_destroy(&s->done);
	pthread_mutex_destroy(&s->lock);
	free(s);
}
