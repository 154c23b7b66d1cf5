#include "scip/dump/page_scan.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/io.h"
#include "base/page.h"
#include "scip/dump/pagemap_scan.h"

enum { REGIONS_AT_ONCE = 512, WORDS_AT_ONCE = 8192 };

int page_runs_add(struct page_runs *runs, uint64_t start, uint64_t count, enum page_kind kind)
{
	struct page_run *last = runs->n ? &runs->v[runs->n - 1] : NULL;

	if (!count)
		return 0;
	if (last && last->kind == kind && last->start + last->count * PAGE == start) {
		last->count += count;
		return 0;
	}
	if (runs->n == runs->room) {
		size_t room = runs->room ? runs->room * 2 : 64;
		struct page_run *v = reallocarray(runs->v, room, sizeof(*v));

		if (!v)
			return -ENOMEM;
		runs->v = v;
		runs->room = room;
	}
	runs->v[runs->n++] = (struct page_run){start, count, kind};
	return 0;
}

void page_runs_free(struct page_runs *runs)
{
	free(runs->v);
	*runs = (struct page_runs){NULL, 0, 0};
}

int page_runs_from_pagemap(const uint64_t *words, size_t n, uint64_t start, struct page_runs *runs)
{
	for (size_t i = 0; i < n; i++) {
		bool guard = (words[i] & WORD_GUARD) != 0;
		int r;

		if (!guard && (!(words[i] & (WORD_PRESENT | WORD_SWAPPED)) || (words[i] & WORD_FILE)))
			continue;
		r = page_runs_add(runs, start + i * PAGE, 1, guard ? PAGE_GUARD : PAGE_OWN);
		if (r < 0)
			return r;
	}
	return 0;
}

int page_runs_split(const uint64_t *words, size_t n, uint64_t start, struct page_runs *runs)
{
	for (size_t i = 0; i < n; i++) {
		bool own = (words[i] & WORD_EXCLUSIVE) || !(words[i] & WORD_PRESENT);
		int r = page_runs_add(runs, start + i * PAGE, 1, own ? PAGE_OWN : PAGE_COMMON);

		if (r < 0)
			return r;
	}
	return 0;
}

int page_scanner_open(struct page_scanner *scanner, pid_t pid, struct err *err)
{
	char path[64];

	*scanner = (struct page_scanner){.pagemap = -1};
	snprintf(path, sizeof(path), "/proc/%d/pagemap", pid);
	scanner->pagemap = open(path, O_RDONLY | O_CLOEXEC);
	return scanner->pagemap < 0 ? err_sys(err, "open %s", path) : 0;
}

void page_scanner_close(struct page_scanner *scanner)
{
	if (scanner->pagemap >= 0)
		close(scanner->pagemap);
	scanner->pagemap = -1;
}

typedef int (*words_fn)(const uint64_t *words, size_t n, uint64_t start, struct page_runs *runs);

static int each_words(struct page_scanner *scanner, uint64_t start, uint64_t end, words_fn each,
		      struct page_runs *runs, struct err *err)
{
	uint64_t words[WORDS_AT_ONCE];

	while (start < end) {
		size_t n = (end - start) / PAGE;
		ssize_t got;
		int r;

		if (n > WORDS_AT_ONCE)
			n = WORDS_AT_ONCE;
		got = io_pread_full(scanner->pagemap, words, n * sizeof(words[0]),
				    (off_t)(start / PAGE * sizeof(words[0])));
		if (got < 0)
			return err_code(err, (int)got, "read pagemap");
		if ((size_t)got != n * sizeof(words[0]))
			return err_set(err, -EIO, "pagemap ends at 0x%lx", (unsigned long)start);
		r = each(words, n, start, runs);
		if (r < 0)
			return r;
		start += n * PAGE;
	}
	return 0;
}

/* Makes one call for as many regions as there is room for. Returns their number or -errno. */
static int scan_some(struct page_scanner *scanner, uint64_t *start, uint64_t end, struct scan_region *regions)
{
	uint64_t guard = scanner->no_guards ? 0 : SCAN_GUARD;
	struct scan_arg arg = {.size = sizeof(arg),
			       .start = *start,
			       .end = end,
			       .vec = (uint64_t)(uintptr_t)regions,
			       .vec_len = REGIONS_AT_ONCE,
			       .category_inverted = SCAN_FILE | SCAN_PFNZERO,
			       .category_mask = SCAN_FILE | SCAN_PFNZERO,
			       .category_anyof_mask = SCAN_PRESENT | SCAN_SWAPPED | guard,
			       .return_mask = SCAN_PRESENT | SCAN_SWAPPED | guard |
					      (scanner->written ? SCAN_WRITTEN | SCAN_TRACKED : 0)};
	int n = ioctl(scanner->pagemap, SCAN_CALL, &arg);

	if (n < 0 && errno == EINVAL && guard) {
		scanner->no_guards = true;
		return scan_some(scanner, start, end, regions);
	}
	if (n < 0)
		return -errno;
	*start = arg.walk_end;
	return n;
}

/* Until Linux 6.13 a page that mremap() has moved stays write-protected although it is not tracked there. */
static bool is_sent(const struct page_scanner *scanner, const struct scan_region *region)
{
	return scanner->written && (region->categories & (SCAN_TRACKED | SCAN_WRITTEN)) == SCAN_TRACKED;
}

static int scan_quick(struct page_scanner *scanner, uint64_t start, uint64_t end, struct page_runs *runs)
{
	struct scan_region regions[REGIONS_AT_ONCE];

	while (start < end) {
		int n = scan_some(scanner, &start, end, regions);

		if (n < 0)
			return n;
		for (int i = 0; i < n; i++) {
			const struct scan_region *region = &regions[i];
			int r = page_runs_add(runs, region->start, (region->end - region->start) / PAGE,
					      region->categories & SCAN_GUARD ? PAGE_GUARD
					      : is_sent(scanner, region)      ? PAGE_SENT
									      : PAGE_OWN);

			if (r < 0)
				return r;
		}
	}
	return 0;
}

static int scan_any(struct page_scanner *scanner, uint64_t start, uint64_t end, struct page_runs *runs,
		    struct err *err)
{
	size_t before = runs->n;

	if (!scanner->no_scan) {
		int r = scan_quick(scanner, start, end, runs);

		if (r != -ENOTTY && r != -EINVAL)
			return r < 0 ? err_code(err, r, "scan pages at 0x%lx", (unsigned long)start) : 0;
		scanner->no_scan = true;
		runs->n = before;
	}
	return each_words(scanner, start, end, page_runs_from_pagemap, runs, err);
}

int page_split(struct page_scanner *scanner, const struct page_runs *found, struct page_runs *runs,
	       struct err *err)
{
	int r = 0;

	for (size_t i = 0; i < found->n && r >= 0; i++) {
		const struct page_run *run = &found->v[i];

		if (run->kind != PAGE_OWN)
			r = page_runs_add(runs, run->start, run->count, run->kind);
		else
			r = each_words(scanner, run->start, run->start + run->count * PAGE, page_runs_split,
				       runs, err);
	}
	return r;
}

int page_scan(struct page_scanner *scanner, uint64_t start, uint64_t end, bool shares, struct page_runs *runs,
	      struct err *err)
{
	struct page_runs found = {NULL, 0, 0};
	int r;

	if (!shares)
		return scan_any(scanner, start, end, runs, err);
	r = scan_any(scanner, start, end, &found, err);
	if (r >= 0)
		r = page_split(scanner, &found, runs, err);
	page_runs_free(&found);
	return r;
}
