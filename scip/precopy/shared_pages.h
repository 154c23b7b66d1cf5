/*
 * Shared memory in pre-copy: objects that several processes map (anonymous memory, memory files, System V
 * segments).
 *
 * Each round sends the pages that were written since the last one, each page once, read through one of the
 * processes that map it. Which pages these are is a guess. It follows from the same write tracking as for
 * private memory (track.h), in every mapping that existed when the skeleton was taken, which misses what is
 * written
 *   - by write(), ftruncate(), fallocate(), splice(), O_DIRECT or io_uring through a descriptor,
 *   - by a process that was born since, or one outside of the tree,
 *   - through a mapping that was made or moved since (mmap, mremap, another shmat),
 *   - through a mapping that was gone again when the round looked,
 *   - and pages that are in no process's page tables.
 * So the guess only decides what a round reads. The truth is found at the end, when all processes are frozen:
 * every page that the object has by then, or that was ever sent of it, is read through the mappings of that
 * moment and compared with what was sent, by digest (notes.h). The kernel's list of pages (mincore) lacks
 * pages that are swapped out: an object that had any when the processes were dumped is not pre-copied, and
 * where anything was written to swap since then all pages are compared (scip/dump/dump_shared.c). Where a
 * page cannot be read, or cannot be seen through the mappings (no process maps that part of a memory file),
 * the object is in the image as if it had not been pre-copied.
 *
 * The comparison takes about 100 ms per GiB on two processors.
 */
#ifndef SCIP_PRECOPY_SHARED_PAGES_H
#define SCIP_PRECOPY_SHARED_PAGES_H

#include "scip/capture/shared_object.h"
#include "scip/precopy/page_sender.h"

struct shared_pages;
/* NULL when out of memory. */
struct shared_pages *shared_pages_new(void);
/* After page_sender_close(), as the sender's threads use it. May be NULL. */
void shared_pages_free(struct shared_pages *shared);
/* Chooses from the skeleton's objects those that are pre-copied (shared_object.there->precopied). All
 * processes are frozen. 0 or -errno. */
must_check int shared_pages_begin(struct shared_pages *shared, struct shared_object *list, size_t n,
				  struct err *err);
/* Tracks the mappings that this process has of them. *t must stay where it is until shared_pages_free(). */
void shared_pages_watch(struct shared_pages *shared, struct tracked *t);
/* Bytes that a round would send. */
uint64_t shared_pages_due(const struct shared_pages *shared);
/* Bytes that were ever sent, and must be compared at the end. */
uint64_t shared_pages_bytes(const struct shared_pages *shared);
/* Queues the pages that were written since the last round. 0 or -errno. */
must_check int shared_pages_send_round(struct shared_pages *shared, struct page_sender *sender);
/* Sends what differs at the end, with all processes frozen. Of each pre-copied object of the list everything
 * is in place afterwards (there->precopied, there->sent), or there->precopied is 0 and the object must be in
 * the image. 0 or -errno. */
must_check int shared_pages_send_last(struct shared_pages *shared, struct page_sender *sender,
				      struct shared_object *list, size_t n, struct err *err);

#endif
