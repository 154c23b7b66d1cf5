/*
 * The bytes of the file, which docs/IMAGE.md describes. All numbers are little-endian, as the supported
 * processors are.
 *
 *   0                     the ELF stub, padded with zeroes
 *   IMAGE_SUPER_OFFSET    struct image_super
 *   IMAGE_DATA_OFFSET     data: whole pages of memory, bulk bytes; every piece begins on a page
 *   manifest_offset       the packed Manifest, on a page
 *   digests_offset        XXH3-128 of each IMAGE_CHUNK bytes of [0, digests_offset)
 *   size - sizeof trailer struct image_trailer
 */
#ifndef IMAGE_LAYOUT_H
#define IMAGE_LAYOUT_H

#include <stdint.h>

#define IMAGE_SUPER_MAGIC   "PBEAMIMG"
#define IMAGE_TRAILER_MAGIC "PBEAMEND"
#define IMAGE_SUPER_OFFSET  16384u
#define IMAGE_DATA_OFFSET   20480u
#define IMAGE_CHUNK	    (1u << 20)
#define IMAGE_DIGEST	    16u
#define IMAGE_MANIFEST_MAX  (1u << 30)

struct image_super {
	char magic[8];
	uint32_t format;
	uint32_t page;
	uint64_t created_ns;
	char scip[1024]; /* path of the scip that wrote it; the stub runs it if it exists */
	uint8_t reserved[4096 - 8 - 4 - 4 - 8 - 1024 - 8];
	uint64_t digest; /* XXH3-64 of all before */
};

struct image_trailer {
	char magic[8];
	uint32_t format;
	uint32_t reserved;
	uint64_t manifest_offset;
	uint64_t manifest_length;
	uint64_t digests_offset;
	uint64_t digests_count;
	uint64_t size; /* of the whole file */
	uint8_t manifest_digest[IMAGE_DIGEST];
	uint8_t digests_digest[IMAGE_DIGEST];
	uint64_t digest; /* XXH3-64 of all before */
};

_Static_assert(sizeof(struct image_super) == 4096, "the superblock is one page");
_Static_assert(sizeof(struct image_trailer) == 96, "the trailer is part of the format");

#endif
