/*
 * Which pages of a mapping have contents of their own.
 *
 * PAGEMAP_SCAN (Linux 6.7) walks the page tables in the kernel and skips what is not there: a gigabyte in
 * under a millisecond. Where it is missing pagemap is read, 8 bytes a page. Which of the pages are mapped
 * elsewhere too (copy-on-write after a fork) is told by pagemap's bit 56 only, so that is read where smaps
 * says that there are any.
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
	PAGE_COMMON,  /* mapped elsewhere too: worth looking for in the image */
	PAGE_GUARD,   /* MADV_GUARD_INSTALL */
	PAGE_SENT,    /* not written since it was write-protected, and sent, by a migration */
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

/* Appends, joining it to the last run where it continues it. -ENOMEM. */
must_check int page_runs_add(struct page_runs *runs, uint64_t start, uint64_t count, enum page_kind kind);
void page_runs_free(struct page_runs *runs);

struct page_scanner {
	int pagemap; /* /proc/PID/pagemap */
	bool no_scan, no_guards;
	bool written; /* tell PAGE_SENT apart; not where there is no PAGEMAP_SCAN */
};
must_check int page_scanner_open(struct page_scanner *scanner, pid_t pid, struct err *err);
void page_scanner_close(struct page_scanner *scanner);
/* Appends the anonymous pages, present or swapped, of [start, end), zero pages left out. With `shares` those
 * that are mapped elsewhere are told apart. */
must_check int page_scan(struct page_scanner *scanner, uint64_t start, uint64_t end, bool shares,
			 struct page_runs *runs, struct err *err);

/* The second half of page_scan() with `shares`: what the first half, without, has found. */
must_check int page_split(struct page_scanner *scanner, const struct page_runs *found, struct page_runs *runs,
			  struct err *err);

/* The same from pagemap words, pure: `words[i]` is that of page start + i. */
must_check int page_runs_from_pagemap(const uint64_t *words, size_t n, uint64_t start,
				      struct page_runs *runs);
/* Splits a run of PAGE_OWN by the exclusive bit of its pagemap words. */
must_check int page_runs_split(const uint64_t *words, size_t n, uint64_t start, struct page_runs *runs);

#endif
