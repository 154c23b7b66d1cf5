/*
 * A thread that walks the page tables of large mappings while the rest of the process is collected. Reading
 * smaps walks them as well; in parallel, on two processors, a gigabyte of small pages costs 12 ms of the
 * pause instead of 22.
 */
#ifndef SCIP_DUMP_PRESCAN_H
#define SCIP_DUMP_PRESCAN_H

#include "scip/dump/page_scan.h"

struct prescan;

/* Starts on the private memory of the stopped process; `status` is the text of its /proc/PID/status,
 * `written` as in struct page_scanner. NULL where that does not pay or fails; then memory is scanned when it
 * is needed. The caller frees it. */
struct prescan *prescan_start(pid_t tid, const char *status, bool written);
/* Waits, and appends what page_scan() without `shares` would. False if this range was not scanned. */
bool prescan_take(struct prescan *prescan, uint64_t start, uint64_t end, struct page_runs *runs, int *r);
void prescan_free(struct prescan *prescan);

#endif
