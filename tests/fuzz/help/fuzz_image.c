#include "tests/fuzz/help/fuzz_image.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#define XXH_STATIC_LINKING_ONLY
#include <xxhash.h>

#include "base/bytes.h"
#include "base/io.h"
#include "image/image.h"
#include "image/layout.h"

static void put128(uint8_t out[IMAGE_DIGEST], const void *data, size_t len)
{
	XXH128_canonical_t canonical;

	XXH128_canonicalFromHash(&canonical, XXH3_128bits(data, len));
	memcpy(out, canonical.digest, IMAGE_DIGEST);
}

static void put_super(uint8_t *image)
{
	struct image_super *super = (struct image_super *)(void *)(image + IMAGE_SUPER_OFFSET);

	memcpy(super->magic, IMAGE_SUPER_MAGIC, 8);
	super->format = IMAGE_FORMAT;
	super->page = IMAGE_PAGE;
	super->digest = XXH3_64bits(super, offsetof(struct image_super, digest));
}

static void put_digests(uint8_t *image, struct image_trailer *t)
{
	uint8_t *table = image + t->digests_offset;

	for (uint64_t i = 0, at = 0; i < t->digests_count; i++, at += IMAGE_CHUNK) {
		const uint64_t left = t->digests_offset - at;

		put128(table + i * IMAGE_DIGEST, image + at, left < IMAGE_CHUNK ? left : IMAGE_CHUNK);
	}
	put128(t->digests_digest, table, t->digests_count * IMAGE_DIGEST);
}

int fuzz_image(const uint8_t *manifest, size_t len, size_t pages)
{
	struct image_trailer t = {.format = IMAGE_FORMAT};
	uint8_t *image;
	int fd;

	memcpy(t.magic, IMAGE_TRAILER_MAGIC, 8);
	t.manifest_offset = IMAGE_DATA_OFFSET + pages * IMAGE_PAGE;
	t.manifest_length = len;
	t.digests_offset = t.manifest_offset + len;
	t.digests_count = (t.digests_offset + IMAGE_CHUNK - 1) / IMAGE_CHUNK;
	t.size = t.digests_offset + t.digests_count * IMAGE_DIGEST + sizeof(t);
	image = calloc(1, t.size);
	if (!image)
		return -1;
	put_super(image);
	for (uint64_t i = IMAGE_DATA_OFFSET; i < t.manifest_offset; i++)
		image[i] = (uint8_t)(i * 7);
	bytes_copy(image + t.manifest_offset, manifest, len);
	put_digests(image, &t);
	put128(t.manifest_digest, manifest, len);
	t.digest = XXH3_64bits(&t, offsetof(struct image_trailer, digest));
	memcpy(image + t.size - sizeof(t), &t, sizeof(t));
	fd = memfd_create("fuzz", MFD_CLOEXEC);
	if (fd >= 0 && io_write_full(fd, image, t.size) < 0) {
		close(fd);
		fd = -1;
	}
	free(image);
	return fd;
}
