#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/io.h"
#include "base/log.h"
#include "channel/channel.h"
#include "proto/frame.h"
#include "proto/message.h"
#include "scip/migrate/pages/lane_wire.h"
#include "scip/migrate/pages/lanes.h"
#include "scip/migrate/pages/pack.h"

enum { QUEUE = 4, TICK_NS = 100000000, NS_PER_S = 1000000000, PATIENCE_S = 600 };
#define BURST_NS   20000000ull /* what a limit of bandwidth lets through at once */
#define LINK_BYTES (1u << 20)  /* a round of less says nothing of the connection */

struct batch {
	struct tracked *t;
	struct track_run runs[TRACK_RUNS];
	size_t n;
	uint64_t bytes;
};

struct lane {
	struct lanes *lanes;
	pthread_t thread;
	struct lane_wire wire;
	bool own;   /* not the migration's channel */
	bool dirty; /* it has sent something in this round */
	uint64_t round_bytes, round_ns;
	struct pack *pack;
	struct batch batch; /* at work on it */
};

struct lanes {
	struct lanes_options options;
	uint8_t cookie[CHANNEL_COOKIE_SIZE];
	pthread_mutex_t lock; /* of all below */
	pthread_cond_t work;  /* for the threads */
	pthread_cond_t done;  /* for the main thread */
	struct batch queue[QUEUE];
	size_t head, count;
	struct batch making; /* the main thread's */
	unsigned busy;	     /* threads at work */
	unsigned open;	     /* lanes besides the channel */
	unsigned round;
	bool ending, stop;
	struct err err; /* code 0: none has failed */
	struct lanes_count counted;
	uint64_t next_ns; /* no byte before, by the limit */
	struct note_store store;
	struct lane v[1 + LANES_MAX];
	unsigned n;
};

/* ---- in the threads ---- */

static void fail(struct lanes *s, const struct err *err)
{
	pthread_mutex_lock(&s->lock);
	if (!s->err.code)
		err_set(&s->err, err->code ? err->code : -EIO, "%s", err->text);
	pthread_cond_broadcast(&s->work);
	pthread_cond_broadcast(&s->done);
	pthread_mutex_unlock(&s->lock);
}

static bool is_over(struct lanes *s)
{
	bool over;

	pthread_mutex_lock(&s->lock);
	over = s->stop || s->err.code;
	pthread_mutex_unlock(&s->lock);
	return over;
}

/* No faster than allowed, all together. */
static void hold_back(struct lanes *s, uint64_t bytes)
{
	uint64_t now = io_now_ns(CLOCK_MONOTONIC), until;

	if (!s->options.bandwidth)
		return;
	pthread_mutex_lock(&s->lock);
	if (s->next_ns + BURST_NS < now)
		s->next_ns = now - BURST_NS;
	until = s->next_ns += (uint64_t)((double)bytes / (double)s->options.bandwidth * NS_PER_S);
	pthread_mutex_unlock(&s->lock);
	for (; until > now && !is_over(s); now = io_now_ns(CLOCK_MONOTONIC)) {
		const uint64_t nap = until - now < TICK_NS ? until - now : TICK_NS;

		nanosleep(&(struct timespec){.tv_nsec = (long)nap}, NULL);
	}
}

/* Why a lane cannot be sent to any more is there to be read. */
static int explain(struct lane *lane, int r, struct err *err)
{
	struct err said = ERR_INIT;

	if (r != -EPIPE && r != -ECONNRESET)
		return r;
	if (lane_wire_take(&lane->wire, PBEAM__CHANNEL_MESSAGE__MIGRATE_ROUND, NULL, NULL, &said) < 0)
		return err_set(err, said.code, "%s", said.text);
	return r;
}

static int send_packed(struct lane *lane, struct packed *packed, struct err *err)
{
	const uint64_t begin = io_now_ns(CLOCK_MONOTONIC);
	struct lanes *s = lane->lanes;
	int r;

	packed->message.round = s->round; /* it does not change while a thread is busy */
	lane->dirty = true;
	r = lane_wire_send(&lane->wire, PBEAM__CHANNEL_MESSAGE__MIGRATE_PAGES, &packed->message.base, err);
	if (r == 0)
		r = lane_wire_send_bulk(&lane->wire, packed->data, packed->message.bytes, err);
	if (r == 0)
		r = lane_wire_flush(&lane->wire, err);
	if (r < 0)
		return explain(lane, r, err);
	hold_back(s, packed->message.bytes);
	if (!lane->round_bytes)
		lane->round_ns = begin;
	lane->round_bytes += packed->message.bytes;
	pack_sent(lane->pack, packed->message.bytes, io_now_ns(CLOCK_MONOTONIC) - begin);
	return 0;
}

static int send_batch(struct lane *lane, struct err *err)
{
	struct lanes *s = lane->lanes;
	struct batch *batch = &lane->batch;
	struct packed packed;
	int r = 0;

	pack_runs(lane->pack, batch->t, batch->runs, batch->n, &s->store, &packed);
	for (size_t i = 0; i < batch->n; i++)
		if (batch->runs[i].missing)
			track_again(batch->t, &batch->runs[i]);
	if (!packed.empty)
		r = send_packed(lane, &packed, err);
	pthread_mutex_lock(&s->lock);
	s->counted.pages += batch->bytes;
	s->counted.wire += packed.message.bytes;
	pthread_mutex_unlock(&s->lock);
	return r;
}

static int end_round(struct lane *lane, struct err *err)
{
	Pbeam__MigrateRound round = PBEAM__MIGRATE_ROUND__INIT, *answer = NULL;
	int r;

	round.round = lane->lanes->round;
	r = lane_wire_send(&lane->wire, PBEAM__CHANNEL_MESSAGE__MIGRATE_ROUND, &round.base, err);
	if (r == 0)
		r = lane_wire_flush(&lane->wire, err);
	if (r < 0)
		return explain(lane, r, err);
	r = lane_wire_take(&lane->wire, PBEAM__CHANNEL_MESSAGE__MIGRATE_ROUND,
			   &pbeam__migrate_round__descriptor, &answer, err);
	if (r == 0 && answer->round != round.round)
		r = err_set(err, -EPROTO, "the other host has got another round than was sent");
	message_free(answer);
	if (lane->round_bytes >= LINK_BYTES)
		pack_sent(lane->pack, lane->round_bytes, io_now_ns(CLOCK_MONOTONIC) - lane->round_ns);
	lane->round_bytes = 0;
	return r;
}

/* What is to be done next, with the lock held. False: nothing any more. */
static bool await_work(struct lane *lane, bool *batch)
{
	struct lanes *s = lane->lanes;

	while (!s->stop && !s->err.code) {
		*batch = s->count > 0 && (lane->own || !s->open);
		if (*batch) {
			struct batch *next = &s->queue[s->head];

			memcpy(&lane->batch, next, offsetof(struct batch, runs));
			memcpy(lane->batch.runs, next->runs, next->n * sizeof(next->runs[0]));
			lane->batch.n = next->n;
			lane->batch.bytes = next->bytes;
			s->head = (s->head + 1) % QUEUE;
			s->count--;
			return true;
		}
		if (s->ending && lane->dirty)
			return true;
		pthread_cond_wait(&s->work, &s->lock);
	}
	return false;
}

static void work(struct lane *lane)
{
	struct lanes *s = lane->lanes;
	struct err err = ERR_INIT;
	bool batch;
	int r = 0;

	pthread_mutex_lock(&s->lock);
	while (r == 0 && await_work(lane, &batch)) {
		s->busy++;
		pthread_cond_signal(&s->done); /* there is room in the queue */
		pthread_mutex_unlock(&s->lock);
		r = batch ? send_batch(lane, &err) : end_round(lane, &err);
		pthread_mutex_lock(&s->lock);
		s->busy--;
		if (!batch)
			lane->dirty = false;
		pthread_cond_signal(&s->done);
	}
	pthread_mutex_unlock(&s->lock);
	if (r < 0)
		fail(s, &err);
}

/* The other side says when it is ready: until then nothing is under way. */
static int open_lane(struct lane *lane, struct err *err)
{
	struct lanes *s = lane->lanes;
	struct lane_wire wire = {
		.channel =
			channel_open(s->options.host, PBEAM__CHANNEL_KIND__CHANNEL_SESSION, s->cookie, err)};
	int r = wire.channel < 0 ? wire.channel : lane_wire_take_over(&wire, err);

	if (wire.channel < 0)
		return r;
	lane_wire_set_patience(&wire, PATIENCE_S);
	pthread_mutex_lock(&s->lock);
	lane->wire = wire; /* from here on lanes_close() cuts it short */
	if (r == 0 && s->stop)
		r = err_set(err, -ECANCELED, "it is over");
	pthread_mutex_unlock(&s->lock);
	if (r == 0)
		r = lane_wire_take(&lane->wire, PBEAM__CHANNEL_MESSAGE__MIGRATE_READY, NULL, NULL, err);
	pthread_mutex_lock(&s->lock);
	s->open += r == 0;
	pthread_mutex_unlock(&s->lock);
	return r;
}

/* A lane that cannot be opened is done without. */
static void *run(void *arg)
{
	struct lane *lane = arg;
	struct err err = ERR_INIT;

	prctl(PR_SET_NAME, "scip-lane");
	if (!lane->own || open_lane(lane, &err) == 0)
		work(lane);
	else
		log_info("migrate: one stream less: %s", err.text);
	return NULL;
}

/* ---- in the main thread ---- */

/* Until a thread has done something or a moment has passed; with the lock held. */
static int await(struct lanes *s)
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

static int hand_over(struct lanes *s)
{
	int r = 0;

	if (!s->making.n)
		return 0;
	pthread_mutex_lock(&s->lock);
	r = s->err.code;
	while (r == 0 && s->count == QUEUE)
		r = await(s);
	if (r == 0) {
		s->queue[(s->head + s->count) % QUEUE] = s->making;
		s->count++;
		pthread_cond_broadcast(&s->work); /* not every lane takes it */
	}
	pthread_mutex_unlock(&s->lock);
	s->making.n = 0;
	s->making.bytes = 0;
	return r;
}

int lanes_put(void *lanes, struct tracked *t, struct track_range *range, uint64_t start, uint64_t end)
{
	struct lanes *s = lanes;
	int r = 0;

	while (start < end && r == 0) {
		const uint64_t room = LANES_BATCH - s->making.bytes;
		const uint64_t n = end - start < room ? end - start : room;

		s->making.t = t;
		s->making.runs[s->making.n++] =
			(struct track_run){.start = start, .end = start + n, .range = range};
		s->making.bytes += n;
		start += n;
		if (s->making.n == TRACK_RUNS || s->making.bytes == LANES_BATCH)
			r = hand_over(s);
	}
	return r;
}

int lanes_flush(struct lanes *s)
{
	return hand_over(s);
}

static bool is_at_work(const struct lanes *s)
{
	if (s->count || s->busy)
		return true;
	for (unsigned i = 0; i < s->n; i++)
		if (s->v[i].dirty)
			return true;
	return false;
}

int lanes_finish(struct lanes *s, struct err *err)
{
	int r = hand_over(s);

	pthread_mutex_lock(&s->lock);
	s->ending = true;
	pthread_cond_broadcast(&s->work);
	while (r == 0 && is_at_work(s))
		r = await(s);
	s->ending = false;
	s->round++;
	r = s->err.code;
	if (r < 0)
		err_set(err, r, "%s", s->err.text);
	pthread_mutex_unlock(&s->lock);
	return r;
}

struct lanes_count lanes_counted(struct lanes *s)
{
	struct lanes_count counted;

	pthread_mutex_lock(&s->lock);
	counted = s->counted;
	pthread_mutex_unlock(&s->lock);
	return counted;
}

static int start(struct lanes *s, struct lane *lane)
{
	sigset_t all, before;
	int r;

	lane->lanes = s;
	lane->pack = pack_new();
	if (!lane->pack)
		return -ENOMEM;
	/* Signals are the main thread's. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	r = pthread_create(&lane->thread, NULL, run, lane);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (r)
		pack_free(lane->pack);
	return -r;
}

int lanes_open(struct lanes **out, const struct lanes_options *options, struct err *err)
{
	struct lanes *s = calloc(1, sizeof(*s));
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
	for (unsigned i = 0; i <= options->n && i <= LANES_MAX && r == 0; i++) {
		s->v[i].own = i > 0;
		s->v[i].wire.channel = i > 0 ? -1 : options->channel;
		if (i == 0)
			lane_wire_set_patience(&s->v[i].wire, PATIENCE_S);
		r = start(s, &s->v[i]);
		if (r == 0)
			s->n++;
	}
	if (!s->n) {
		lanes_close(s);
		return err_code(err, r, "start a thread for pages");
	}
	*out = s;
	return 0;
}

void lanes_close(struct lanes *s)
{
	if (!s)
		return;
	pthread_mutex_lock(&s->lock);
	s->stop = true;
	pthread_cond_broadcast(&s->work);
	for (unsigned i = 0; i < s->n; i++) /* who is in the middle of something does not go on */
		if (s->v[i].wire.channel >= 0 && (s->v[i].own || s->err.code))
			shutdown(s->v[i].wire.channel, SHUT_RDWR);
	pthread_mutex_unlock(&s->lock);
	for (unsigned i = 0; i < s->n; i++) {
		pthread_join(s->v[i].thread, NULL);
		pack_free(s->v[i].pack);
		if (s->v[i].own)
			lane_wire_close(&s->v[i].wire);
	}
	note_store_free(&s->store);
	pthread_cond_destroy(&s->work);
	pthread_cond_destroy(&s->done);
	pthread_mutex_destroy(&s->lock);
	free(s);
}
