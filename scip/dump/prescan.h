/*
 * The page tables of large mappings walked by a thread while the rest of a process is collected: smaps walks
 * them too, so that on two processors a gigabyte of small pages costs 12 ms of the pause and not 22.
 */
#ifndef SCIP_DUMP_PRESCAN_H
#define SCIP_DUMP_PRESCAN_H

#include "scip/dump/page_scan.h"

struct prescan;

/* Begins with the private memory of the stopped process; `written` as in struct page_scanner. NULL where it
 * would not pay or cannot be done: then it is scanned when it is asked for. The caller frees it. */
struct prescan *prescan_start(pid_t tid, bool written);
/* Appends what page_scan() without `shares` would, once that is known. False if this range was not scanned.
 */
bool prescan_take(struct prescan *prescan, uint64_t start, uint64_t end, struct page_runs *runs, int *rc);
void prescan_free(struct prescan *prescan);

#endif
