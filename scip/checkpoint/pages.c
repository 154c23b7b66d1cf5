#include "scip/checkpoint/pages.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/io.h"

enum { PAGE = 4096, REGIONS_AT_ONCE = 512, WORDS_AT_ONCE = 8192 };

/* pagemap, Documentation/admin-guide/mm/pagemap.rst */
#define WORD_EXCLUSIVE (UINT64_C(1) << 56)
#define WORD_GUARD     (UINT64_C(1) << 58)
#define WORD_FILE      (UINT64_C(1) << 61)
#define WORD_SWAPPED   (UINT64_C(1) << 62)
#define WORD_PRESENT   (UINT64_C(1) << 63)

/* PAGEMAP_SCAN, Linux 6.7; the guard category 6.15. Not in the headers of older systems. */
struct scan_region {
	uint64_t start, end, categories;
};
struct scan_arg {
	uint64_t size, flags, start, end, walk_end, vec, vec_len, max_pages;
	uint64_t category_inverted, category_mask, category_anyof_mask, return_mask;
};
#define SCAN_CALL    _IOWR('f', 16, struct scan_arg)
#define SCAN_FILE    (UINT64_C(1) << 2)
#define SCAN_PRESENT (UINT64_C(1) << 3)
#define SCAN_SWAPPED (UINT64_C(1) << 4)
#define SCAN_PFNZERO (UINT64_C(1) << 5)
#define SCAN_GUARD   (UINT64_C(1) << 8)

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
		int rc;

		if (!guard && (!(words[i] & (WORD_PRESENT | WORD_SWAPPED)) || (words[i] & WORD_FILE)))
			continue;
		rc = page_runs_add(runs, start + i * PAGE, 1, guard ? PAGE_GUARD : PAGE_OWN);
		if (rc < 0)
			return rc;
	}
	return 0;
}

int page_runs_split(const uint64_t *words, size_t n, uint64_t start, struct page_runs *runs)
{
	for (size_t i = 0; i < n; i++) {
		bool own = (words[i] & WORD_EXCLUSIVE) || !(words[i] & WORD_PRESENT);
		int rc = page_runs_add(runs, start + i * PAGE, 1, own ? PAGE_OWN : PAGE_COMMON);

		if (rc < 0)
			return rc;
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
		int rc;

		if (n > WORDS_AT_ONCE)
			n = WORDS_AT_ONCE;
		got = io_pread_full(scanner->pagemap, words, n * sizeof(words[0]),
				    (off_t)(start / PAGE * sizeof(words[0])));
		if (got < 0)
			return err_code(err, (int)got, "read pagemap");
		if ((size_t)got != n * sizeof(words[0]))
			return err_set(err, -EIO, "pagemap ends at 0x%lx", (unsigned long)start);
		rc = each(words, n, start, runs);
		if (rc < 0)
			return rc;
		start += n * PAGE;
	}
	return 0;
}

/* One call of the ioctl for as many regions as there is room for. Returns how many, or -errno. */
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
			       .return_mask = SCAN_PRESENT | SCAN_SWAPPED | guard};
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

static int scan_quick(struct page_scanner *scanner, uint64_t start, uint64_t end, struct page_runs *runs)
{
	struct scan_region regions[REGIONS_AT_ONCE];

	while (start < end) {
		int n = scan_some(scanner, &start, end, regions);

		if (n < 0)
			return n;
		for (int i = 0; i < n; i++) {
			const struct scan_region *r = &regions[i];
			int rc = page_runs_add(runs, r->start, (r->end - r->start) / PAGE,
					       r->categories & SCAN_GUARD ? PAGE_GUARD : PAGE_OWN);

			if (rc < 0)
				return rc;
		}
	}
	return 0;
}

static int scan_any(struct page_scanner *scanner, uint64_t start, uint64_t end, struct page_runs *runs,
		    struct err *err)
{
	size_t before = runs->n;

	if (!scanner->no_scan) {
		int rc = scan_quick(scanner, start, end, runs);

		if (rc != -ENOTTY && rc != -EINVAL)
			return rc < 0 ? err_code(err, rc, "scan pages at 0x%lx", (unsigned long)start) : 0;
		scanner->no_scan = true;
		runs->n = before;
	}
	return each_words(scanner, start, end, page_runs_from_pagemap, runs, err);
}

int page_scan(struct page_scanner *scanner, uint64_t start, uint64_t end, bool shares, struct page_runs *runs,
	      struct err *err)
{
	struct page_runs found = {NULL, 0, 0};
	int rc;

	if (!shares)
		return scan_any(scanner, start, end, runs, err);
	rc = scan_any(scanner, start, end, &found, err);
	for (size_t i = 0; i < found.n && rc >= 0; i++) {
		const struct page_run *run = &found.v[i];

		if (run->kind == PAGE_GUARD)
			rc = page_runs_add(runs, run->start, run->count, run->kind);
		else
			rc = each_words(scanner, run->start, run->start + run->count * PAGE, page_runs_split,
					runs, err);
	}
	page_runs_free(&found);
	return rc;
}
