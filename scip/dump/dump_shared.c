/*
 * Dumps the contents of shared memory, in the scip of a process that maps it.
 *
 * A page of shared memory may exist although this process has never touched it, so the process's page tables
 * do not show it. mincore(), called inside, reports the pages that the object has in memory, but not those
 * that are swapped out; where smaps showed such pages when the process was dumped, the whole range is read. A
 * page written to swap later is still in the swap cache for a while, where mincore() finds it; so mincore()
 * is complete as long as nothing has been swapped out since.
 */
#include "scip/dump/dump.h"

#include <errno.h>
#include <sys/syscall.h>

#include "base/host_memory.h"
#include "base/page.h"
#include "proto/message.h"
#include "scip/dump/dump_parts.h"
#include "scip/dump/page_scan.h"
#include "scip/dump/page_writer.h"

enum { ASK_PAGES = 64 * 1024 };

struct shared {
	struct process *process;
	struct tracee *caller;
	struct image_arena *arena;
	struct page_writer *writer; /* NULL: the pages are listed only */
	uint64_t swapped_out;	    /* host_memory_swapped_out() from before */
};

static int find_resident(struct shared *shared, uint64_t start, uint64_t n, struct page_runs *runs,
			 struct err *err)
{
	struct batch *batch;
	const uint8_t *got;
	struct taddr at;
	int r = batch_begin(shared->process, &batch, err);

	if (r < 0)
		return r;
	r = batch_data(batch, NULL, n, &at);
	if (r >= 0)
		r = batch_add(batch, 0, SYS_mincore, remote_args(start, n * PAGE, at.a));
	if (r >= 0)
		r = batch_run(batch, shared->caller, err);
	got = r >= 0 ? batch_local(batch, at) : NULL;
	for (uint64_t i = 0; i < n && r >= 0; i++)
		if (got[i] & 1)
			r = page_runs_add(runs, start + i * PAGE, 1, PAGE_OWN);
	batch_end(batch);
	return r;
}

/* Finds the pages that the object has in the range. 1: some may be swapped out; a request that only lists
 * pages gets the whole range. */
static int find_pages(struct shared *shared, const Pbeam__SharedRef *range, struct page_runs *runs,
		      struct err *err)
{
	bool swapped = range->swapped && shared->writer;
	int r = 0;

	for (uint64_t at = range->start; at < range->end && r >= 0 && !swapped;
	     at += (uint64_t)ASK_PAGES * PAGE) {
		uint64_t n = (range->end - at) / PAGE;

		r = find_resident(shared, at, n < ASK_PAGES ? n : ASK_PAGES, runs, err);
	}
	swapped = swapped || host_memory_swapped_out() != shared->swapped_out;
	if (r < 0 || !swapped || shared->writer)
		return r < 0 ? r : swapped;
	page_runs_free(runs);
	return page_runs_add(runs, range->start, (range->end - range->start) / PAGE, PAGE_OWN);
}

static int dump_range(struct shared *shared, const Pbeam__SharedRef *range, Pbeam__SharedPages *out,
		      struct err *err)
{
	int64_t shift = (int64_t)(range->offset - range->start);
	struct page_runs runs = {NULL, 0, 0};
	uint64_t total = 0, offset = 0;
	int r = 0;

	r = find_pages(shared, range, &runs, err);
	if (r > 0) {
		page_runs_free(&runs);
		return page_writer_common(shared->writer, range->start, (range->end - range->start) / PAGE,
					  shift, true, &out->n_pages, &out->pages, err);
	}
	for (size_t i = 0; i < runs.n; i++)
		total += runs.v[i].count;
	if (shared->writer)
		offset = image_arena_take(shared->arena, total * PAGE);
	for (size_t i = 0; i < runs.n && r >= 0; i++) {
		const struct page_run *run = &runs.v[i];

		r = pages_append(&out->n_pages, &out->pages, run->start + (uint64_t)shift, run->count,
				 offset);
		if (r < 0 || !shared->writer)
			continue;
		r = page_writer_add(shared->writer, run->start, run->count, offset, range->unreadable, err);
		offset += run->count * PAGE;
	}
	page_runs_free(&runs);
	return r;
}

static int dump_ranges(struct shared *shared, const Pbeam__ScipDumpShared *request,
		       Pbeam__ScipDumpedShared *out, struct err *err)
{
	for (size_t i = 0; i < request->n_ranges; i++) {
		const Pbeam__SharedRef *range = request->ranges[i];
		Pbeam__SharedPages *pages = message_add(out, ranges, pbeam__shared_pages__descriptor);
		int r = pages ? dump_range(shared, range, pages, err) : -ENOMEM;

		if (r < 0)
			return err_wrap(err, r, "shared memory at 0x%lx", (unsigned long)range->start);
	}
	return shared->writer ? page_writer_flush(shared->writer, err) : 0;
}

int dump_shared(struct process *process, int image_fd, struct image_arena *arena,
		const Pbeam__ScipDumpShared *request, Pbeam__ScipDumpedShared *out, struct err *err)
{
	struct shared shared = {.process = process,
				.arena = arena,
				.caller = dump_caller(process),
				.swapped_out = request->swapped_out};
	bool injected = false;
	int r;

	if (!shared.caller)
		return err_set(err, -ESRCH, "vpid %d has ended", process->vpid.n);
	r = dump_inject(process, shared.caller, &injected, err);
	if (r >= 0 && !request->list_only)
		r = page_writer_open(&shared.writer, process, shared.caller, image_fd, arena, err);
	if (r >= 0)
		r = dump_ranges(&shared, request, out, err);
	if (shared.writer) {
		out->bytes = page_writer_bytes(shared.writer);
		page_writer_close(shared.writer);
	}
	r = dump_withdraw(shared.caller, injected, r, err);
	return r < 0 ? err_wrap(err, r, "vpid %d", process->vpid.n) : 0;
}
