#include "scip/precopy/precopy.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/io.h"
#include "base/log.h"
#include "channel/channel.h"
#include "channel/wire.h"
#include "proto/frame.h"
#include "proto/message.h"
#include "scip/capture/capture.h"
#include "scip/capture/track.h"
#include "scip/precopy/match.h"
#include "scip/precopy/notes.h"
#include "scip/precopy/page_sender.h"
#include "scip/precopy/page_stream.h"
#include "scip/precopy/shared_pages.h"
#include "scip/tracee/procfs.h"

enum {
	ROUNDS_MAX = 30,
	WORSE_MAX = 3,		/* rounds that brought no improvement */
	RATE_BYTES = 1 << 20,	/* a round of fewer bytes does not measure the rate */
	RATE_GUESS = 256 << 20, /* bytes per second, until a round has shown it */
	NS_PER_S = 1000000000,
	SHARED_LEAST = 4 << 20,
};
#define PAUSE_NS     100000000ull /* by default */
#define FIXED_NS     20000000ull  /* of the pause, whatever there is to send */
#define MOMENT_NS    1000000ull	  /* shorter times are not measured */
#define REPORT_NS    100000000ull
#define STREAM_BYTES (16ull << 20) /* what is worth one more stream */
#define COMPARE_RATE (8ull << 30)  /* bytes per second */

struct precopy {
	struct precopy_options options;
	struct tracked *v;
	struct notes **notes; /* for each of these one per range */
	size_t n;
	struct shared_pages *shared_pages;
	struct page_sender *sender;
	bool usable; /* the skeleton has been sent */
	unsigned round;
	uint64_t begin_bytes, due; /* of this round: sent before it, and written since the last one */
	uint64_t untracked;	   /* private memory that has to wait for the end, */
	uint64_t shared;	   /* shared memory that has to, */
	uint64_t compared;	   /* and shared memory that is only compared then */
	uint64_t rate, dirty_rate; /* bytes per second */
	uint64_t expected_ns, reported_ns;
};

/* ---- the skeleton ---- */

/* Refuses a session with a terminal: its leader alone can make the terminal the session's again, before
 * others are forked, from an object that is not there yet. The first process may have its stub's terminal. */
static int refuse_terminals(const struct precopy *p, const struct group *group, struct err *err)
{
	struct procfs_stat stat;

	for (size_t i = p->options.comes_home ? 1 : 0; i < group->n; i++)
		if (procfs_stat_read(group->v[i]->rpid.n, 0, &stat, NULL) == 0 &&
		    stat.session == group->v[i]->rpid.n && stat.tty_nr)
			return err_set(err, -ENOTSUP, "vpid %d leads a session with a terminal",
				       group->v[i]->vpid.n);
	return 0;
}

static int begin_shared(void *arg, struct shared_object *list, size_t n, struct err *err)
{
	struct precopy *p = arg;

	shared_pages_free(p->shared_pages); /* of an attempt that failed */
	p->shared_pages = shared_pages_new();
	return p->shared_pages ? shared_pages_begin(p->shared_pages, list, n, err)
			       : err_code(err, -ENOMEM, "shared memory");
}

static int begin_tracking(struct precopy *p, struct group *group, struct member *member, struct err *err)
{
	struct tracked *t = &p->v[p->n];
	struct notes **notes = &p->notes[p->n];
	int r;

	p->n++;
	r = track_begin(t, group, member, err);
	if (r < 0)
		return r;
	*notes = calloc(t->nranges + 1, sizeof(**notes));
	if (!*notes)
		return err_code(err, -ENOMEM, "track memory");
	for (size_t i = 0; i < t->nranges; i++) {
		notes_init(&(*notes)[i], t->ranges[i].end - t->ranges[i].start);
		t->ranges[i].notes = &(*notes)[i];
	}
	return 0;
}

static void end_tracking(struct precopy *p, size_t i)
{
	for (size_t j = 0; p->notes[i] && j < p->v[i].nranges; j++)
		notes_free(&p->notes[i][j]);
	free(p->notes[i]);
	p->notes[i] = NULL;
	track_end(&p->v[i]);
}

static void end_all_tracking(struct precopy *p)
{
	for (size_t i = 0; i < p->n; i++)
		end_tracking(p, i);
	free(p->notes);
	free(p->v);
	p->notes = NULL;
	p->v = NULL;
	p->n = 0;
}

static int track_members(struct precopy *p, struct group *group, struct err *err)
{
	int r = 0;

	p->v = calloc(group->n + 1, sizeof(*p->v));
	p->notes = calloc(group->n + 1, sizeof(*p->notes));
	if (!p->v || !p->notes)
		return err_code(err, -ENOMEM, "track memory");
	for (size_t i = 0; i < group->n && r == 0; i++)
		if (!group->v[i]->zombie) /* mostly not for long */
			r = begin_tracking(p, group, group->v[i], err);
	for (size_t i = 0; i < p->n && p->shared_pages && r == 0; i++)
		shared_pages_watch(p->shared_pages, &p->v[i]);
	return r;
}

static int send_skeleton(struct precopy *p, const struct capture *c, uint64_t bytes, struct err *err)
{
	Pbeam__MigrateState state = PBEAM__MIGRATE_STATE__INIT;
	int r;

	state.bytes = bytes;
	p->usable = true;
	r = wire_send(p->options.channel, PBEAM__CHANNEL_MESSAGE__MIGRATE_SKELETON, &state.base, err);
	return r < 0 ? r
		     : wire_send_range(p->options.channel, image_writer_fd(c->writer), 0, bytes, "the image",
				       err);
}

/* Captures and sends the skeleton, and begins to track. The processes go on in every case. */
static int capture_skeleton(struct precopy *p, struct names *names, struct err *err)
{
	const struct precopy_options *options = &p->options;
	const struct capture_options how = {.target = options->target,
					    .alone = options->alone,
					    .moves = true,
					    .stays = options->stays,
					    .stays_arg = options->stays_arg,
					    .job = options->job,
					    .shared = begin_shared,
					    .shared_arg = p};
	struct capture_result result = {0};
	struct capture capture;
	int r = capture_open(&capture, names, &how, err);

	if (r >= 0)
		r = capture_freeze(&capture, err);
	if (r >= 0)
		r = refuse_terminals(p, &capture.group, err);
	if (r >= 0)
		r = capture_dump(&capture, PBEAM__SCIP_DUMP__WHAT__SKELETON, err);
	if (r >= 0)
		r = capture_list_shared(&capture, err);
	if (r >= 0)
		r = capture_commit(&capture, false, &result, err);
	if (r >= 0)
		r = track_members(p, &capture.group, err);
	if (r >= 0)
		r = send_skeleton(p, &capture, result.bytes, err);
	if (r < 0)
		end_all_tracking(p);
	capture_thaw(&capture);
	capture_log(&capture, "thawed");
	capture_close(&capture);
	return r < 0 && !err->text[0] ? err_code(err, r, "capture the skeleton") : r;
}

/* Counts what would have to be sent next. */
static void count_dirty(struct precopy *p)
{
	p->due = p->untracked = p->shared = 0;
	for (size_t i = 0; i < p->n; i++) {
		track_count(&p->v[i], &p->due, &p->untracked);
		p->shared += track_shared(&p->v[i]);
	}
	if (!p->shared_pages)
		return;
	p->due += shared_pages_due(p->shared_pages);
	p->compared = shared_pages_bytes(p->shared_pages);
	p->shared -= p->shared < p->compared ? p->shared : p->compared;
	p->shared = p->shared < SHARED_LEAST ? 0 : p->shared; /* each process counts its part */
}

static void report_tick(void *arg);

/* Chooses the number of streams besides the channel: one per processor that both hosts have, if they are
 * worth it. */
static unsigned choose_streams(const struct precopy *p, const Pbeam__MigrateReady *ready)
{
	const long processors = sysconf(_SC_NPROCESSORS_ONLN);
	uint64_t n = ready->cookie.len == CHANNEL_COOKIE_SIZE ? ready->streams : 0;

	if (processors > 0 && n > (uint64_t)processors)
		n = (uint64_t)processors;
	if (n > p->due / STREAM_BYTES)
		n = p->due / STREAM_BYTES;
	return n < PAGE_STREAMS_MAX ? (unsigned)n : PAGE_STREAMS_MAX;
}

/* Returns 1 when the target is ready for pages, 0 when it cannot make the pre-copied processes. */
static int open_sender(struct precopy *p, struct err *err)
{
	struct page_sender_options options = {.host = p->options.host,
					      .channel = p->options.channel,
					      .bandwidth = p->options.bandwidth,
					      .tick = report_tick,
					      .tick_arg = p};
	Pbeam__MigrateReady *ready = NULL;
	int r = wire_take(p->options.channel, PBEAM__CHANNEL_MESSAGE__MIGRATE_READY,
			  &pbeam__migrate_ready__descriptor, &ready, err);

	if (r == 0 && ready->streams) {
		count_dirty(p);
		options.n = choose_streams(p, ready);
		options.cookie = options.n ? ready->cookie.data : NULL;
		r = page_sender_open(&p->sender, &options, err);
		r = r < 0 ? r : 1;
	}
	message_free(ready);
	return r;
}

int precopy_begin(struct precopy **out, struct names *names, const struct precopy_options *options,
		  struct err *err)
{
	struct precopy *p = calloc(1, sizeof(*p));
	struct capture_retry retry = {.last_ms = CAPTURE_RETRY_MS};
	struct err why = ERR_INIT;
	int r;

	*out = NULL;
	if (!p)
		return 0;
	p->options = *options;
	p->rate = RATE_GUESS;
	do
		r = capture_skeleton(p, names, &why);
	while (!p->usable && capture_should_retry(&retry, options->target, r, &why));
	if (r < 0 && !p->usable) {
		log_info("migrate: vpid %d is sent while it stands still: %s", options->target.n, why.text);
		precopy_end(p);
		return 0;
	}
	/* Once part of the skeleton has been sent, the target would read the rest out of what follows. */
	r = r < 0 ? err_set(err, r, "%s", why.text) : open_sender(p, err);
	if (r <= 0) {
		precopy_end(p);
		return r;
	}
	*out = p;
	return 0;
}

/* ---- progress ---- */

static double to_mib(uint64_t bytes)
{
	return (double)bytes / (1 << 20);
}

static double to_ms(uint64_t ns)
{
	return (double)ns / 1e6;
}

static void report_progress(struct precopy *p, const char *note)
{
	struct migrate_progress progress = {.total = p->due};
	const uint64_t now = io_now_ns(CLOCK_MONOTONIC);
	uint64_t sent;

	if (!p->options.progress || (!note && now - p->reported_ns < REPORT_NS))
		return;
	p->reported_ns = now;
	sent = page_sender_counted(p->sender).pages - p->begin_bytes;
	progress.done = sent < p->due ? sent : p->due;
	snprintf(progress.phase, sizeof(progress.phase), "round %u", p->round);
	if (p->round > 1)
		snprintf(progress.detail, sizeof(progress.detail), "%.0f MiB/s written, pause %.0f ms",
			 to_mib(p->dirty_rate), to_ms(p->expected_ns));
	snprintf(progress.note, sizeof(progress.note), "%s", note ? note : "");
	p->options.progress(p->options.progress_arg, &progress);
}

static void report_tick(void *arg)
{
	report_progress(arg, NULL);
}

/* The part of the pause that rounds cannot shorten. */
static uint64_t fixed_ns(const struct precopy *p)
{
	return precopy_send_ns(p, p->shared) +
	       (uint64_t)((double)p->compared / (double)COMPARE_RATE * NS_PER_S);
}

/* Concludes from a round how much there is to send by now, how fast that came, and how long it would take. */
static void judge_round(struct precopy *p, uint64_t took_ns)
{
	const double seconds = (double)(took_ns > MOMENT_NS ? took_ns : MOMENT_NS) / NS_PER_S;
	const uint64_t sent = page_sender_counted(p->sender).pages - p->begin_bytes;

	if (sent >= RATE_BYTES)
		p->rate = (uint64_t)((double)sent / seconds);
	count_dirty(p);
	p->dirty_rate = (uint64_t)((double)p->due / seconds);
	p->expected_ns = FIXED_NS + precopy_send_ns(p, p->due + p->untracked) + fixed_ns(p);
	log_info("migrate: round %u: %.1f MiB in %.0f ms; then %.1f + %.1f MiB written, %.1f MiB shared, "
		 "%.1f MiB to be compared, expected pause %.0f ms",
		 p->round, to_mib(sent), to_ms(took_ns), to_mib(p->due), to_mib(p->untracked),
		 to_mib(p->shared), to_mib(p->compared), to_ms(p->expected_ns));
}

/* Explains why the pause will be longer than allowed. */
static void report_end(struct precopy *p, uint64_t pause_ns)
{
	char shared[80] = "", text[250];

	if (p->shared)
		snprintf(shared, sizeof(shared),
			 " and has %.0f MiB of shared memory, which is sent at the end", to_mib(p->shared));
	else if (p->compared)
		snprintf(shared, sizeof(shared),
			 " and has %.0f MiB of shared memory, which is compared at the end",
			 to_mib(p->compared));
	snprintf(text, sizeof(text),
		 "after %u round%s it still writes %.0f MiB/s%s: a pause of %.0f ms is expected instead of "
		 "%.0f ms; going on",
		 p->round, p->round == 1 ? "" : "s", to_mib(p->dirty_rate), shared, to_ms(p->expected_ns),
		 to_ms(pause_ns));
	log_info("migrate: %s", text);
	report_progress(p, text);
}

/* ---- rounds ---- */

/* The last round has private memory only. */
static int send_round(struct precopy *p, bool last, struct err *err)
{
	int r = 0, done;

	p->begin_bytes = page_sender_counted(p->sender).pages;
	for (size_t i = 0; i < p->n && r == 0; i++) {
		r = track_report(&p->v[i], page_sender_put, p->sender);
		if (r == 0)
			r = page_sender_flush(p->sender);
		if (r == 0)
			r = fault_point("migrate-round", err);
		if (r == 0)
			report_progress(p, NULL);
	}
	if (r == 0 && p->shared_pages && !last)
		r = shared_pages_send_round(p->shared_pages, p->sender);
	done = page_sender_finish(p->sender, err);
	if (r == 0)
		r = done;
	for (size_t i = 0; i < p->n; i++)
		track_set_read(&p->v[i]);
	return r < 0 && !(err && err->code) ? err_code(err, r, "send pages") : r;
}

int precopy_send_rounds(struct precopy *p, struct err *err)
{
	const uint64_t pause = p->options.max_pause_ns ? p->options.max_pause_ns : PAUSE_NS;
	uint64_t best = UINT64_MAX;
	unsigned worse = 0;

	for (;;) {
		const uint64_t at = io_now_ns(CLOCK_MONOTONIC);
		int r;

		p->round++;
		r = send_round(p, false, err);
		if (r < 0)
			return r;
		judge_round(p, io_now_ns(CLOCK_MONOTONIC) - at);
		if (p->expected_ns - fixed_ns(p) <= pause)
			break;
		worse = p->expected_ns > best - best / 8 ? worse + 1 : 0;
		if (p->expected_ns < best)
			best = p->expected_ns;
		if (worse >= WORSE_MAX || p->round >= ROUNDS_MAX)
			break;
	}
	if (p->expected_ns > pause)
		report_end(p, pause);
	return 0;
}

static bool is_precopied(const struct group *group, const struct tracked *t)
{
	const struct member *member = group_find(group, t->rpid);

	return member && member->precopied;
}

int precopy_send_last(struct precopy *p, const struct group *group, struct err *err)
{
	const uint64_t at = io_now_ns(CLOCK_MONOTONIC);
	int r;

	for (size_t i = 0; i < p->n; i++)
		if (!is_precopied(group, &p->v[i])) /* is dumped whole, tracked memory would not be */
			end_tracking(p, i);
	p->round++;
	r = send_round(p, true, err);
	log_info("migrate: last round: %.1f MiB in %.1f ms",
		 to_mib(page_sender_counted(p->sender).pages - p->begin_bytes),
		 to_ms(io_now_ns(CLOCK_MONOTONIC) - at));
	return r;
}

int precopy_send_shared(struct precopy *p, struct shared_object *list, size_t n, struct err *err)
{
	const uint64_t at = io_now_ns(CLOCK_MONOTONIC), before = page_sender_counted(p->sender).wire;
	int r = p->shared_pages ? shared_pages_send_last(p->shared_pages, p->sender, list, n, err) : 0;

	log_info("migrate: %.1f MiB of shared memory sent at the end in %.1f ms",
		 to_mib(page_sender_counted(p->sender).wire - before),
		 to_ms(io_now_ns(CLOCK_MONOTONIC) - at));
	return r;
}

/* ---- the end ---- */

void precopy_count(const struct precopy *p, uint64_t *bytes, uint32_t *rounds)
{
	*bytes = page_sender_counted(p->sender).wire;
	*rounds = p->round;
}

size_t precopy_match(const struct precopy *p, struct group *group)
{
	return match_members(p->v, p->n, group);
}

uint64_t precopy_shared_bytes(const struct precopy *p)
{
	return p->shared_pages ? shared_pages_bytes(p->shared_pages) : 0;
}

uint64_t precopy_send_ns(const struct precopy *p, uint64_t bytes)
{
	return p->rate ? (uint64_t)((double)bytes / (double)p->rate * NS_PER_S) : 0;
}

void precopy_end(struct precopy *p)
{
	if (!p)
		return;
	page_sender_close(p->sender);
	shared_pages_free(p->shared_pages);
	end_all_tracking(p);
	free(p);
}
