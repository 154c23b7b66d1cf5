/*
 * Compressing pays when it takes less time than sending the bytes that it saves. Both times are measured: the
 * speed and the ratio of zstd's level 1 on the memory of this program, by compressing a batch now and then
 * whether it pays or not; and how long sending blocks.
 */
#include "scip/precopy/pack.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <zstd.h>

#include "base/io.h"
#include "base/page.h"
#include "scip/precopy/delta.h"
#include "scip/precopy/page_stream.h"

enum { PAGES = PAGE_STREAM_BATCH / PAGE, LEVEL = 1, FIRST_TRIAL = 4, TRIAL_EVERY = 64 };
#define WEIGHT 0.25 /* of a new measurement in the mean */
#define WORTH  0.9  /* a larger ratio is not worth it */

struct pack {
	uint8_t *read;	 /* the pages, those sent whole moved to the front */
	uint8_t *deltas; /* differences of others */
	uint8_t *small;	 /* both, compressed */
	size_t whole, changed, room;
	ZSTD_CCtx *zstd;
	Pbeam__Pages pages[PAGES], zeroes[PAGES], *page_list[PAGES], *zero_list[PAGES];
	Pbeam__PageDelta differences[PAGES], *difference_list[PAGES];
	size_t npages, nzeroes, ndifferences;
	double link, zstd_cost; /* measured, ns per byte */
	double ratio;		/* measured, bytes left of a byte */
	unsigned batches;
};

struct pack *pack_new(void)
{
	struct pack *pack = calloc(1, sizeof(*pack));

	if (!pack)
		return NULL;
	pack->room = ZSTD_compressBound(PAGE_STREAM_BATCH);
	pack->read = malloc(2 * PAGE_STREAM_BATCH); /* the second half is for the differences */
	pack->deltas = malloc(PAGE_STREAM_BATCH);
	pack->small = malloc(pack->room);
	pack->zstd = ZSTD_createCCtx();
	pack->ratio = 1;
	if (!pack->read || !pack->deltas || !pack->small || !pack->zstd) {
		pack_free(pack);
		return NULL;
	}
	return pack;
}

void pack_free(struct pack *pack)
{
	if (!pack)
		return;
	free(pack->read);
	free(pack->deltas);
	free(pack->small);
	ZSTD_freeCCtx(pack->zstd);
	free(pack);
}

/* ---- the message ---- */

static void append_page(Pbeam__Pages *v, Pbeam__Pages **list, size_t *n, uint64_t address)
{
	if (*n && v[*n - 1].address + v[*n - 1].count * PAGE == address) {
		v[*n - 1].count++;
		return;
	}
	pbeam__pages__init(&v[*n]);
	v[*n].address = address;
	v[*n].count = 1;
	list[*n] = &v[*n];
	(*n)++;
}

static void add_delta(struct pack *pack, uint64_t address, size_t len)
{
	Pbeam__PageDelta *delta = &pack->differences[pack->ndifferences];

	pbeam__page_delta__init(delta);
	delta->address = address;
	delta->bytes = (uint32_t)len;
	pack->difference_list[pack->ndifferences++] = delta;
	pack->changed += len;
}

/* Pages of a shared object are addressed by their place in it, not by where they are mapped. */
static void add_page(struct pack *pack, struct note_store *store, const struct track_run *run, uint64_t at,
		     const uint8_t *page)
{
	const uint64_t within = at - run->range->start, address = run->range->object ? within : at;
	const size_t number = within / PAGE;
	size_t len = 0;

	switch (notes_take(run->range->notes, store, number, page, pack->deltas + pack->changed, &len)) {
	case NOTE_SAME:
		break;
	case NOTE_DELTA:
		add_delta(pack, address, len);
		break;
	case NOTE_WHOLE:
		if (page_is_zero(page)) {
			append_page(pack->zeroes, pack->zero_list, &pack->nzeroes, address);
			break;
		}
		if (pack->read + pack->whole != page)
			memmove(pack->read + pack->whole, page, PAGE);
		pack->whole += PAGE;
		append_page(pack->pages, pack->page_list, &pack->npages, address);
		break;
	}
}

static bool is_trial_due(const struct pack *pack)
{
	return pack->batches >= FIRST_TRIAL && (pack->batches - FIRST_TRIAL) % TRIAL_EVERY == 0;
}

static bool is_compressing_worth(const struct pack *pack)
{
	return pack->zstd_cost > 0 && pack->ratio < WORTH &&
	       pack->zstd_cost + pack->ratio * pack->link < pack->link;
}

static double update_mean(double before, double now)
{
	return before > 0 ? before + WEIGHT * (now - before) : now;
}

static void compress_message(struct pack *pack, struct packed *out)
{
	const uint64_t begin = io_now_ns(CLOCK_MONOTONIC);
	const size_t n =
		ZSTD_compressCCtx(pack->zstd, pack->small, pack->room, out->data, out->message.raw, LEVEL);
	const double raw = (double)out->message.raw;

	if (ZSTD_isError(n))
		return;
	pack->zstd_cost = update_mean(pack->zstd_cost, (double)(io_now_ns(CLOCK_MONOTONIC) - begin) / raw);
	pack->ratio = update_mean(pack->ratio, (double)n / raw);
	if ((double)n > raw * WORTH)
		return;
	out->message.compressed = true;
	out->message.bytes = n;
	out->data = pack->small;
}

void pack_runs(struct pack *pack, const struct tracked *t, struct track_run *runs, size_t n,
	       struct note_store *store, struct packed *out)
{
	const uint8_t *page = pack->read;

	pack->npages = pack->nzeroes = pack->ndifferences = pack->whole = pack->changed = 0;
	track_read(t, runs, n, pack->read);
	for (size_t i = 0; i < n; i++)
		for (uint64_t at = runs[i].start; at < runs[i].end; at += PAGE, page += PAGE)
			if (!runs[i].missing)
				add_page(pack, store, &runs[i], at, page);
	memcpy(pack->read + pack->whole, pack->deltas, pack->changed);
	*out = (struct packed){.data = pack->read};
	pbeam__migrate_pages__init(&out->message);
	out->message.shared_id = n ? runs[0].range->object : 0;
	out->message.vpid = out->message.shared_id ? 0 : t->vpid.n;
	out->message.pages = pack->page_list;
	out->message.n_pages = pack->npages;
	out->message.zeroes = pack->zero_list;
	out->message.n_zeroes = pack->nzeroes;
	out->message.deltas = pack->difference_list;
	out->message.n_deltas = pack->ndifferences;
	out->message.raw = out->message.bytes = pack->whole + pack->changed;
	out->empty = !pack->npages && !pack->nzeroes && !pack->ndifferences;
	if (!out->message.raw)
		return;
	if (is_trial_due(pack) || is_compressing_worth(pack))
		compress_message(pack, out);
	pack->batches++;
}

void pack_sent(struct pack *pack, uint64_t bytes, uint64_t ns)
{
	if (bytes)
		pack->link = update_mean(pack->link, (double)ns / (double)bytes);
}
