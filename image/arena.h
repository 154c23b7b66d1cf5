/* The arena's memory, shared between the coordinator and the scips of one dump. Private to image/. */
#ifndef IMAGE_ARENA_H
#define IMAGE_ARENA_H

#include <stdatomic.h>
#include <stdint.h>

#include "image/image.h"
#include "image/layout.h"

#define ARENA_MAGIC	 0x41524e41u
#define ARENA_CHUNKS_MAX (1u << 22) /* of IMAGE_CHUNK bytes: 4 TiB of file */

/* A page that is in the file. A slot is empty while `low` is 0 and taken but not ready while `offset` is 0.
 */
struct arena_slot {
	_Atomic uint64_t low, high, offset;
};

struct image_arena {
	uint32_t magic;
	uint32_t slot_bits;
	uint64_t bytes; /* of this mapping */
	uint64_t seed;	/* of the page digests: unknown to the program, so that it cannot make collisions */
	_Atomic uint64_t next;
	_Atomic uint32_t
		chunk_bytes[ARENA_CHUNKS_MAX]; /* how much of each chunk of the file is written; sparse */
	struct arena_slot slots[];
};

/* A new arena in a memfd; *fd is the caller's. */
must_check int image_arena_create(uint64_t expect_pages, int *fd, struct image_arena **out, struct err *err);

#endif
