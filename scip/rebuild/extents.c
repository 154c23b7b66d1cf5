#include "scip/rebuild/extents.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>

#include "base/bytes.h"
#include "base/cleanup.h"
#include "image/image.h"

int extents_add(struct extents *list, struct extent extent)
{
	struct extent *last = list->n ? &list->v[list->n - 1] : NULL;

	if (extent.start >= extent.end)
		return 0;
	if (last && last->end == extent.start && last->shift == extent.shift) {
		last->end = extent.end;
		return 0;
	}
	if (list->n == list->room) {
		size_t room = list->room ? list->room * 2 : 32;
		struct extent *v = reallocarray(list->v, room, sizeof(*v));

		if (!v)
			return -ENOMEM;
		list->v = v;
		list->room = room;
	}
	list->v[list->n++] = extent;
	return 0;
}

static int compare_extents(const void *a, const void *b)
{
	const struct extent *x = a, *y = b;

	return x->start < y->start ? -1 : x->start > y->start;
}

void extents_sort(struct extents *list)
{
	bool sorted = true;
	uint64_t end = 0;
	size_t n = 0;

	for (size_t i = 1; i < list->n; i++)
		sorted = sorted && list->v[i - 1].end <= list->v[i].start;
	if (sorted)
		return;
	bytes_sort(list->v, list->n, sizeof(*list->v), compare_extents);
	for (size_t i = 0; i < list->n; i++) {
		struct extent extent = list->v[i];

		if (extent.start < end)
			extent.start = end;
		if (extent.start >= extent.end)
			continue;
		end = extent.end;
		list->v[n++] = extent;
	}
	list->n = n;
}

void extents_settle(struct extents *list)
{
	size_t n = 0;

	extents_sort(list);
	for (size_t i = 0; i < list->n; i++) {
		struct extent *last = n ? &list->v[n - 1] : NULL;

		if (last && last->end == list->v[i].start && last->shift == list->v[i].shift)
			last->end = list->v[i].end;
		else
			list->v[n++] = list->v[i];
	}
	list->n = n;
}

uint64_t extents_bytes(const struct extents *list)
{
	uint64_t sum = 0;

	for (size_t i = 0; i < list->n; i++)
		sum += list->v[i].end - list->v[i].start;
	return sum;
}

void extents_free(struct extents *list)
{
	free(list->v);
	*list = (struct extents){NULL, 0, 0};
}

int extents_of(const Pbeam__Memory *memory, struct extents *out)
{
	for (size_t i = 0; i < memory->n_mappings; i++)
		for (size_t j = 0; j < memory->mappings[i]->n_pages; j++) {
			const Pbeam__Pages *pages = memory->mappings[i]->pages[j];
			struct extent extent = {pages->address, pages->address + pages->count * IMAGE_PAGE,
						(int64_t)(image_pages_place(pages) - pages->address)};

			if (extents_add(out, extent) < 0)
				return -ENOMEM;
		}
	extents_sort(out);
	return 0;
}

/* The first extent that ends behind `at`. */
static size_t first_behind(const struct extents *list, uint64_t at)
{
	size_t low = 0, high = list->n;

	while (low < high) {
		size_t middle = (low + high) / 2;

		if (list->v[middle].end <= at)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

int extents_cut(const struct extents *a, const struct extents *b, enum extents_cut which, struct extents *out)
{
	size_t j = 0;

	for (size_t i = 0; i < a->n; i++) {
		struct extent piece = a->v[i];

		while (piece.start < a->v[i].end) {
			bool there, same;

			while (j < b->n && b->v[j].end <= piece.start)
				j++;
			there = j < b->n && b->v[j].start <= piece.start;
			same = there && b->v[j].shift == piece.shift;
			piece.end = a->v[i].end;
			if (there && b->v[j].end < piece.end)
				piece.end = b->v[j].end;
			else if (!there && j < b->n && b->v[j].start < piece.end)
				piece.end = b->v[j].start;
			if ((which == EXTENTS_SAME    ? same
			     : which == EXTENTS_OTHER ? !same
						      : !there) &&
			    extents_add(out, piece) < 0)
				return -ENOMEM;
			piece.start = piece.end;
		}
	}
	return 0;
}

int extents_clip(const struct extents *list, uint64_t start, uint64_t end, struct extents *out)
{
	for (size_t i = first_behind(list, start); i < list->n && list->v[i].start < end; i++) {
		struct extent extent = list->v[i];

		if (extent.start < start)
			extent.start = start;
		if (extent.end > end)
			extent.end = end;
		if (extents_add(out, extent) < 0)
			return -ENOMEM;
	}
	return 0;
}

/* The beginning or end of an extent. */
struct edge {
	uint64_t at;
	int64_t shift;
	int step; /* 1 or -1 */
};

static int compare_edges(const void *a, const void *b)
{
	const struct edge *x = a, *y = b;

	if (x->shift != y->shift)
		return x->shift < y->shift ? -1 : 1;
	return x->at < y->at ? -1 : x->at > y->at;
}

int extents_common(const struct extents *const *lists, size_t n, struct extents *out)
{
	auto_free struct edge *edges = NULL;
	size_t all = 0, nedges = 0;
	long have = 0;

	for (size_t i = 0; i < n; i++)
		all += lists[i]->n;
	edges = calloc(2 * all + 1, sizeof(*edges));
	if (!edges)
		return -ENOMEM;
	for (size_t i = 0; i < n; i++)
		for (size_t j = 0; j < lists[i]->n; j++) {
			const struct extent *extent = &lists[i]->v[j];

			edges[nedges++] = (struct edge){extent->start, extent->shift, 1};
			edges[nedges++] = (struct edge){extent->end, extent->shift, -1};
		}
	bytes_sort(edges, nedges, sizeof(*edges), compare_edges);
	for (size_t i = 0; i + 1 < nedges; i++) {
		have += edges[i].step; /* 0 where another shift begins */
		if (have >= 2 &&
		    extents_add(out, (struct extent){edges[i].at, edges[i + 1].at, edges[i].shift}) < 0)
			return -ENOMEM;
	}
	return 0;
}

int extents_in_common(const struct extents *list, const struct extents *common, struct extents *out)
{
	for (size_t i = 0; i < list->n; i++) {
		const struct extent *extent = &list->v[i];
		size_t low = 0, high = common->n;

		while (low < high) {
			size_t middle = (low + high) / 2;
			const struct extent *at = &common->v[middle];

			if (at->shift < extent->shift ||
			    (at->shift == extent->shift && at->end <= extent->start))
				low = middle + 1;
			else
				high = middle;
		}
		for (; low < common->n && common->v[low].shift == extent->shift &&
		       common->v[low].start < extent->end;
		     low++) {
			struct extent piece = *extent;

			if (piece.start < common->v[low].start)
				piece.start = common->v[low].start;
			if (piece.end > common->v[low].end)
				piece.end = common->v[low].end;
			if (extents_add(out, piece) < 0)
				return -ENOMEM;
		}
	}
	return 0;
}
