/*
 * Internal to scip/fill: splits the pages of a process into pieces of the image. One rule decides which
 * chunks of the file a fill reads whole, for the fill and for the verification before it.
 */
#ifndef SCIP_FILL_FILL_CONTENTS_H
#define SCIP_FILL_FILL_CONTENTS_H

#include <stdbool.h>

#include "image/layout.h"
#include "scip/fill/fill_batch.h"

/* One piece. It lies within one mapping and one chunk of the file. */
struct fill_piece {
	const Pbeam__Mapping *map;
	uint64_t address, offset, bytes;
	uint32_t image; /* 0: the image itself, else the number of an ancestor */
	bool fresh;	/* fill_contents_is_fresh() */
};

struct fill_pieces {
	struct fill_piece *v;
	size_t n, room;
	uint64_t bytes;
	bool in_ancestors; /* some pieces are in ancestors */
};

/* A process with at least this many bytes of pages is filled from outside, by threads of its scip. */
#define FILL_CONTENTS_LARGE (UINT64_C(24) << 20)

/* True if a fill reads pages into the mapping. */
bool fill_contents_has_pages(const Pbeam__Mapping *map);
/* Total size of the pages, in bytes. */
uint64_t fill_contents_bytes(const Pbeam__Memory *memory);
/* Returns how many of the `left` bytes at file offset `offset` lie in the same chunk. */
uint64_t fill_contents_in_chunk(uint64_t offset, uint64_t left);
/* True if the range is exactly one whole chunk. */
bool fill_contents_is_chunk(uint64_t offset, uint64_t bytes);

/* True for new private anonymous memory that has no pages yet. */
bool fill_contents_is_fresh(const struct fill *fill, const Pbeam__Mapping *map);

/* fill_copy.c: writes the pieces into the husk from outside, on several processors; whole chunks are
 * checked when the request says so. The husk has no batch under construction. */
must_check int fill_copy(struct fill *fill, const struct fill_pieces *pieces);

#endif
