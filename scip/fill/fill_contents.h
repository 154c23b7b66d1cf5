/*
 * Inside scip/fill: the pages of a process as pieces of the image, by the same rule wherever it is asked
 * which parts of the file a fill reads whole.
 */
#ifndef SCIP_FILL_FILL_CONTENTS_H
#define SCIP_FILL_FILL_CONTENTS_H

#include <stdbool.h>

#include "image/layout.h"
#include "scip/fill/fill_batch.h"

/* One piece: within one mapping and one chunk of the file. */
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
	bool in_ancestors; /* some are */
};

/* A process with so much is filled from outside, by threads of its scip. */
#define FILL_CONTENTS_LARGE (UINT64_C(24) << 20)

/* True if a fill reads pages into it. */
bool fill_contents_has_pages(const Pbeam__Mapping *map);
/* Bytes of all pages. */
uint64_t fill_contents_bytes(const Pbeam__Memory *memory);
/* How many of the `left` bytes from `offset` of the file are in the same chunk. */
uint64_t fill_contents_in_chunk(uint64_t offset, uint64_t left);
/* They are a chunk, all of it. */
bool fill_contents_is_chunk(uint64_t offset, uint64_t bytes);

/* New private anonymous memory, of which no page is there yet. */
bool fill_contents_is_fresh(const struct fill *fill, const Pbeam__Mapping *map);

/* fill_copy.c: writes the pieces into the husk from outside, on several processors; whole chunks are
 * checked when the request says so. The husk has no batch under construction. */
must_check int fill_copy(struct fill *fill, const struct fill_pieces *pieces);

#endif
