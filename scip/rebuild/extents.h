/*
 * Maps addresses of a process to pages of the image: sorted lists of disjoint address ranges, each with the
 * distance to its offset in the file, or in the chain of files (image_pages_place()). Pure.
 */
#ifndef SCIP_REBUILD_EXTENTS_H
#define SCIP_REBUILD_EXTENTS_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "proto/image.pb-c.h"

/* The addresses [start, end) are at start + shift in the file. */
struct extent {
	uint64_t start, end;
	int64_t shift;
};
struct extents {
	struct extent *v;
	size_t n, room;
};

/* Appends an extent, or extends the last one if the new one continues it. Returns 0 or -ENOMEM. */
must_check int extents_add(struct extents *list, struct extent extent);
/* Sorts, and cuts off overlaps: the earlier extent stays. */
void extents_sort(struct extents *list);
/* Like extents_sort(), and joins extents that continue each other. */
void extents_settle(struct extents *list);
/* Returns the sum of the lengths in bytes. */
uint64_t extents_bytes(const struct extents *list);
void extents_free(struct extents *list);

/* Lists all pages of a process's private memory, sorted. -ENOMEM. */
must_check int extents_of(const Pbeam__Memory *memory, struct extents *out);

enum extents_cut {
	EXTENTS_ELSEWHERE, /* parts that b does not have at all */
	EXTENTS_OTHER,	   /* parts that b does not have from the same place in the file */
	EXTENTS_SAME,	   /* parts that b has from the same place */
};
/* Appends the parts of `a` selected by `which` to `out`. Both lists are sorted. -ENOMEM. */
must_check int extents_cut(const struct extents *a, const struct extents *b, enum extents_cut which,
			   struct extents *out);
/* Appends the parts of `list` in [start, end) to `out`. -ENOMEM. */
must_check int extents_clip(const struct extents *list, uint64_t start, uint64_t end, struct extents *out);
/* Finds the pages that at least two lists have at the same address from the same offset in the file. Unlike
 * other lists the result is sorted by file offset. -ENOMEM. */
must_check int extents_common(const struct extents *const *lists, size_t n, struct extents *out);
/* Appends the parts of `list` that extents_common() has found to `out`. -ENOMEM. */
must_check int extents_in_common(const struct extents *list, const struct extents *common,
				 struct extents *out);

#endif
