/*
 * Shared memory that goes ahead: what several processes map of one object, anonymous memory, a memory file or
 * a System V segment.
 *
 * Each round sends what was written since the last one, each page once, whoever of the processes has written
 * it, read through one that maps it. Which pages these are is a guess: by the same marks as for private
 * memory (track.h) in every mapping that there was when the skeleton was made, which miss what is written
 *   - by write(), ftruncate(), fallocate(), splice(), O_DIRECT, io_uring through a descriptor,
 *   - by a process that was born since, or one outside of the tree,
 *   - through a mapping that was made or moved since (mmap, mremap, shmat of it once more),
 *   - through a mapping that was already gone again when the round looked,
 *   - and pages that nobody has in his page tables.
 * So nothing follows from them but what a round looks at. What is true is found out at the end, when all
 * stand still: every page that the object has by then, or that has ever been sent of it, is read through the
 * mappings as they are then, and compared with what was sent, by digest (notes.h). The kernel's list of pages
 * (mincore) lacks what is swapped out: an object of which anything was when the processes were dumped is not
 * taken, and where anything was written to swap since then all pages count (checkpoint/shared.c). Where
 * something cannot be read, or cannot be seen through the mappings (part of a memory file is mapped by
 * nobody), the object is in the image as if nothing had gone ahead.
 *
 * The comparison takes about 100 ms for a GiB on two processors.
 */
#ifndef SCIP_MIGRATE_OBJECTS_H
#define SCIP_MIGRATE_OBJECTS_H

#include "scip/checkpoint/checkpoint.h"
#include "scip/migrate/pages/page_sender.h"

struct ahead_objects;
struct ahead_objects *ahead_objects_new(void);
/* When the sender are closed: their threads read through what it has. */
void ahead_objects_free(struct ahead_objects *objects);
/* Of the skeleton, all frozen: which of them go ahead (shared_object.there->ahead). */
must_check int ahead_objects_begin(struct ahead_objects *objects, struct shared_object *list, size_t n,
				   struct err *err);
/* What this process has of them is watched. *t stays where it is until ahead_objects_free(). */
void ahead_objects_watch(struct ahead_objects *objects, struct tracked *t);
/* Bytes of what a round would send, and of all that there is. */
uint64_t ahead_objects_due(const struct ahead_objects *objects);
uint64_t ahead_objects_bytes(const struct ahead_objects *objects);
/* Puts what was written. */
must_check int ahead_objects_round(struct ahead_objects *objects, struct page_sender *sender);
/* At the end, all frozen: of each object of the list that has gone ahead everything is in its place
 * (there->ahead, there->sent), or there->ahead is 0 and it is to be in the image. */
must_check int ahead_objects_last(struct ahead_objects *objects, struct page_sender *sender,
				  struct shared_object *list, size_t n, struct err *err);

#endif
