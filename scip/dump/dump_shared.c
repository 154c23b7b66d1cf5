/*
 * The contents of shared memory, in the scip of a process that maps it.
 *
 * A page of shared memory may exist although this process never touched it, so its page tables say nothing.
 * mincore from inside tells which pages the object has; where some are swapped out mincore does not see them,
 * and everything is read. That some are was seen when the process was dumped (smaps); as mincore still sees a
 * page for a while after it has been written to swap, it is enough that nothing was written there since.
 */
#include "scip/dump/dump.h"

#include <errno.h>
#include <sys/syscall.h>

#include "base/host_memory.h"
#include "proto/message.h"
#include "scip/dump/dump_parts.h"
#include "scip/dump/page_scan.h"
#include "scip/dump/page_writer.h"

enum { PAGE = 4096, ASK_PAGES = 64 * 1024 };

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
	int rc = batch_begin(shared->process, &batch, err);

	if (rc < 0)
		return rc;
	rc = batch_data(batch, NULL, n, &at);
	if (rc >= 0)
		rc = batch_add(batch, 0, SYS_mincore, remote_args(start, n * PAGE, at.a));
	if (rc >= 0)
		rc = batch_run(batch, shared->caller, err);
	got = rc >= 0 ? batch_local(batch, at) : NULL;
	for (uint64_t i = 0; i < n && rc >= 0; i++)
		if (got[i] & 1)
			rc = page_runs_add(runs, start + i * PAGE, 1, PAGE_OWN);
	batch_end(batch);
	return rc;
}

/* The pages that the object has in the range. 1: some may be swapped out; who writes nothing gets all. */
static int find_pages(struct shared *shared, const Pbeam__SharedRef *range, struct page_runs *runs,
		      struct err *err)
{
	bool swapped = range->swapped && shared->writer;
	int rc = 0;

	for (uint64_t at = range->start; at < range->end && rc >= 0 && !swapped;
	     at += (uint64_t)ASK_PAGES * PAGE) {
		uint64_t n = (range->end - at) / PAGE;

		rc = find_resident(shared, at, n < ASK_PAGES ? n : ASK_PAGES, runs, err);
	}
	swapped = swapped || host_memory_swapped_out() != shared->swapped_out;
	if (rc < 0 || !swapped || shared->writer)
		return rc < 0 ? rc : swapped;
	page_runs_free(runs);
	return page_runs_add(runs, range->start, (range->end - range->start) / PAGE, PAGE_OWN);
}

static int dump_range(struct shared *shared, const Pbeam__SharedRef *range, Pbeam__SharedPages *out,
		      struct err *err)
{
	int64_t shift = (int64_t)(range->offset - range->start);
	struct page_runs runs = {NULL, 0, 0};
	uint64_t total = 0, offset = 0;
	int rc = 0;

	rc = find_pages(shared, range, &runs, err);
	if (rc > 0) {
		page_runs_free(&runs);
		return page_writer_common(shared->writer, range->start, (range->end - range->start) / PAGE,
					  shift, true, &out->n_pages, &out->pages, err);
	}
	for (size_t i = 0; i < runs.n; i++)
		total += runs.v[i].count;
	if (shared->writer)
		offset = image_arena_take(shared->arena, total * PAGE);
	for (size_t i = 0; i < runs.n && rc >= 0; i++) {
		const struct page_run *run = &runs.v[i];

		rc = pages_append(&out->n_pages, &out->pages, run->start + (uint64_t)shift, run->count,
				  offset);
		if (rc < 0 || !shared->writer)
			continue;
		rc = page_writer_add(shared->writer, run->start, run->count, offset, range->unreadable, err);
		offset += run->count * PAGE;
	}
	page_runs_free(&runs);
	return rc;
}

static int dump_ranges(struct shared *shared, const Pbeam__ScipDumpShared *request,
		       Pbeam__ScipDumpedShared *out, struct err *err)
{
	for (size_t i = 0; i < request->n_ranges; i++) {
		const Pbeam__SharedRef *range = request->ranges[i];
		Pbeam__SharedPages *pages = message_add(out, ranges, pbeam__shared_pages__descriptor);
		int rc = pages ? dump_range(shared, range, pages, err) : -ENOMEM;

		if (rc < 0)
			return err_wrap(err, rc, "shared memory at 0x%lx", (unsigned long)range->start);
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
	int rc;

	if (!shared.caller)
		return err_set(err, -ESRCH, "vpid %d has ended", process->vpid.n);
	rc = dump_inject(process, shared.caller, &injected, err);
	if (rc >= 0 && !request->list_only)
		rc = page_writer_open(&shared.writer, process, shared.caller, image_fd, arena, err);
	if (rc >= 0)
		rc = dump_ranges(&shared, request, out, err);
	if (shared.writer) {
		out->bytes = page_writer_bytes(shared.writer);
		page_writer_close(shared.writer);
	}
	rc = dump_withdraw(shared.caller, injected, rc, err);
	return rc < 0 ? err_wrap(err, rc, "vpid %d", process->vpid.n) : 0;
}
