/*
 * Finds the pages of a mapping that have contents of their own.
 *
 * PAGEMAP_SCAN (Linux 6.7) walks the page tables in the kernel and skips absent pages: a gigabyte takes less
 * than a millisecond. Kernels without it have pagemap, 8 bytes a page. Only bit 56 of pagemap shows which
 * pages other processes map too (copy-on-write after a fork), so pagemap is read as well where smaps reports
 * such pages.
 */
#ifndef SCIP_DUMP_PAGE_SCAN_H
#define SCIP_DUMP_PAGE_SCAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/err.h"

enum page_kind {
	PAGE_OWN = 1, /* only this process has it */
	PAGE_COMMON,  /* other processes map it too: it may be in the image already */
	PAGE_GUARD,   /* MADV_GUARD_INSTALL */
	PAGE_SENT,    /* a migration has sent it, and it has not been written since */
};

/* `count` pages from `start`, all of one kind. */
struct page_run {
	uint64_t start, count;
	enum page_kind kind;
};
struct page_runs {
	struct page_run *v;
	size_t n, room;
};

/* Appends a run, or joins it to the last one that it continues. 0 or -ENOMEM. */
must_check int page_runs_add(struct page_runs *runs, uint64_t start, uint64_t count, enum page_kind kind);
void page_runs_free(struct page_runs *runs);

struct page_scanner {
	int pagemap; /* /proc/PID/pagemap */
	bool no_scan, no_guards;
	bool written; /* distinguish PAGE_SENT; needs PAGEMAP_SCAN */
};
must_check int page_scanner_open(struct page_scanner *scanner, pid_t pid, struct err *err);
void page_scanner_close(struct page_scanner *scanner);
/* Appends the anonymous pages of [start, end), present or swapped, except zero pages. With `shares`, pages
 * that other processes map too are PAGE_COMMON. 0 or -errno. */
must_check int page_scan(struct page_scanner *scanner, uint64_t start, uint64_t end, bool shares,
			 struct page_runs *runs, struct err *err);

/* The second half of page_scan() with `shares`: splits what page_scan() without it has found. 0 or -errno.
 * */
must_check int page_split(struct page_scanner *scanner, const struct page_runs *found, struct page_runs *runs,
			  struct err *err);

/* The same from words of pagemap; words[i] is that of page start + i. Pure. 0 or -ENOMEM. */
must_check int page_runs_from_pagemap(const uint64_t *words, size_t n, uint64_t start,
				      struct page_runs *runs);
/* Splits a run of PAGE_OWN by the exclusive bit of its words of pagemap. Pure. 0 or -ENOMEM. */
must_check int page_runs_split(const uint64_t *words, size_t n, uint64_t start, struct page_runs *runs);

#endif
