#include "scip/dump/prescan.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "base/page.h"
#include "scip/tracee/procfs.h"

#define LARGE (UINT64_C(32) << 20)

struct scanned {
	uint64_t start, end;
	struct page_runs runs;
	bool done;
};

struct prescan {
	struct page_scanner scanner;
	pthread_t thread;
	bool joined;
	struct scanned *v;
	size_t n;
};

static void *scan_all(void *arg)
{
	struct prescan *prescan = arg;
	struct err err = ERR_INIT;
	cpu_set_t all;

	/* A scip stays on its tracee's processor; this thread should run on another one. */
	memset(&all, 0xff, sizeof(all));
	sched_setaffinity(0, sizeof(all), &all);
	for (size_t i = 0; i < prescan->n; i++) {
		struct scanned *one = &prescan->v[i];

		one->done = page_scan(&prescan->scanner, one->start, one->end, false, &one->runs, &err) == 0;
	}
	return NULL;
}

/* Lists the large private mappings of the process. */
static int choose_ranges(struct prescan *prescan, const struct procfs_maps *maps)
{
	prescan->v = calloc(maps->n + 1, sizeof(*prescan->v));
	if (!prescan->v)
		return -ENOMEM;
	for (size_t i = 0; i < maps->n; i++)
		if (!maps->v[i].shared && maps->v[i].end - maps->v[i].start >= LARGE)
			prescan->v[prescan->n++] =
				(struct scanned){.start = maps->v[i].start, .end = maps->v[i].end};
	return prescan->n ? 0 : -ENOENT;
}

/* What is in memory or swapped out, by the text of /proc/PID/status. */
static uint64_t bytes_used(const char *status)
{
	const char *resident = procfs_field(status, "VmRSS"), *swapped = procfs_field(status, "VmSwap");

	return ((resident ? strtoull(resident, NULL, 10) : 0) + (swapped ? strtoull(swapped, NULL, 10) : 0)) *
	       1024;
}

struct prescan *prescan_start(pid_t tid, const char *status, bool written)
{
	struct prescan *prescan = bytes_used(status) < LARGE ? NULL : calloc(1, sizeof(*prescan));
	struct procfs_maps maps = {NULL, 0};
	struct err err = ERR_INIT;

	if (!prescan)
		return NULL;
	prescan->scanner.pagemap = -1;
	prescan->joined = true;
	if (procfs_maps_read(tid, false, &maps, &err) == 0 && choose_ranges(prescan, &maps) == 0 &&
	    page_scanner_open(&prescan->scanner, tid, &err) == 0) {
		prescan->scanner.written = written;
		prescan->joined = pthread_create(&prescan->thread, NULL, scan_all, prescan) != 0;
	}
	procfs_maps_free(&maps);
	if (prescan->joined) {
		prescan_free(prescan);
		return NULL;
	}
	return prescan;
}

static void join_thread(struct prescan *prescan)
{
	if (!prescan->joined)
		pthread_join(prescan->thread, NULL);
	prescan->joined = true;
}

/* Appends the part of `run` in [start, end). */
static int take_run(const struct page_run *run, uint64_t start, uint64_t end, struct page_runs *runs)
{
	uint64_t from = run->start > start ? run->start : start;
	uint64_t to = run->start + run->count * PAGE;

	to = to < end ? to : end;
	return from < to ? page_runs_add(runs, from, (to - from) / PAGE, run->kind) : 0;
}

bool prescan_take(struct prescan *prescan, uint64_t start, uint64_t end, struct page_runs *runs, int *r)
{
	if (!prescan)
		return false;
	for (size_t i = 0; i < prescan->n; i++) {
		const struct scanned *one = &prescan->v[i];

		if (one->start > start || one->end < end)
			continue;
		join_thread(prescan);
		*r = 0;
		for (size_t j = 0; j < one->runs.n && one->done && *r == 0; j++)
			*r = take_run(&one->runs.v[j], start, end, runs);
		return one->done;
	}
	return false;
}

void prescan_free(struct prescan *prescan)
{
	if (!prescan)
		return;
	join_thread(prescan);
	page_scanner_close(&prescan->scanner);
	for (size_t i = 0; i < prescan->n; i++)
		page_runs_free(&prescan->v[i].runs);
	free(prescan->v);
	free(prescan);
}
