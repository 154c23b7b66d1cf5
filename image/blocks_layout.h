/*
 * The bytes of a file N.blocks. Private to image/blocks*.c.
 *
 *   0                           BLOCKS_HEAD_MAGIC, zeros
 *   (1 + i) * BLOCKS_SIZE       block i; a hole if no image refers to it any more
 *   (1 + n) * BLOCKS_SIZE       XXH3-128 of each of the n blocks
 *   size - sizeof tail          struct blocks_tail
 */
#ifndef IMAGE_BLOCKS_LAYOUT_H
#define IMAGE_BLOCKS_LAYOUT_H

#include "image/blocks.h"

#define BLOCKS_HEAD_MAGIC "PBEAMBLK"
#define BLOCKS_TAIL_MAGIC "PBEAMBLE"
#define BLOCKS_FORMAT	  1u
#define BLOCKS_DIGEST	  16u
#define BLOCKS_SUFFIX	  ".blocks"

struct blocks_tail {
	char magic[8];
	uint32_t format, reserved;
	uint64_t n;
	uint8_t identity[BLOCKS_DIGEST]; /* XXH3-128 of the table */
	uint64_t digest;		 /* XXH3-64 of all before */
};

_Static_assert(sizeof(struct blocks_tail) == 48, "the tail is part of the format");

#endif
