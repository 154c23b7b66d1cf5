/*
 * Which page of the image is where in a process: sorted lists of disjoint address ranges, each with the
 * distance to its place in the file. Pure.
 */
#ifndef SCIP_REBUILD_EXTENTS_H
#define SCIP_REBUILD_EXTENTS_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "proto/image.pb-c.h"

/* [start, end) is at start + shift in the file. */
struct extent {
	uint64_t start, end;
	int64_t shift;
};
struct extents {
	struct extent *v;
	size_t n, room;
};

/* Appends, joining it to the last where it continues it. 0 or -ENOMEM. */
must_check int extents_add(struct extents *list, struct extent extent);
/* Sorts, and cuts what overlaps: the first one stays. */
void extents_sort(struct extents *list);
/* ... and joins what continues. */
void extents_settle(struct extents *list);
/* How long they are together. */
uint64_t extents_bytes(const struct extents *list);
void extents_free(struct extents *list);

/* All pages of a process's private memory, sorted. -ENOMEM. */
must_check int extents_of(const Pbeam__Memory *memory, struct extents *out);

enum extents_cut {
	EXTENTS_ELSEWHERE, /* what is not in b at all */
	EXTENTS_OTHER,	   /* what b does not have, or from another place in the file */
	EXTENTS_SAME,	   /* what b has from the same place */
};
/* The parts of `a` that are so, appended to `out`. Both are sorted. -ENOMEM. */
must_check int extents_cut(const struct extents *a, const struct extents *b, enum extents_cut which,
			   struct extents *out);
/* The parts of `list` in [start, end), appended to `out`. -ENOMEM. */
must_check int extents_clip(const struct extents *list, uint64_t start, uint64_t end, struct extents *out);
/* What at least two of the lists have from the same place in the file at the same address. Not a list like
 * the others: in the order of places. -ENOMEM. */
must_check int extents_common(const struct extents *const *lists, size_t n, struct extents *out);
/* The parts of `list` that are in what extents_common() has found, appended to `out`. -ENOMEM. */
must_check int extents_in_common(const struct extents *list, const struct extents *common,
				 struct extents *out);

#endif
