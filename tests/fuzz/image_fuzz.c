/* libFuzzer: the image parser on arbitrary bytes. The mutator hardly ever finds correct digests, so a
 * second mode unpacks the input as a manifest in a well-formed file. */
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#define XXH_STATIC_LINKING_ONLY
#include <xxhash.h>

#include "base/io.h"
#include "image/image.h"
#include "image/layout.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void read_file(int fd)
{
	struct err err = ERR_INIT;
	struct image_reader *reader;

	if (image_reader_open_fd(&reader, fd, "input", &err) < 0)
		return;
	(void)!image_reader_verify(reader, &err);
	image_reader_close(reader);
}

static void put128(uint8_t out[16], const void *data, size_t len)
{
	XXH128_canonical_t canonical;

	XXH128_canonicalFromHash(&canonical, XXH3_128bits(data, len));
	memcpy(out, canonical.digest, 16);
}

/* Makes a file with correct digests whose manifest is the input. */
static int frame_manifest(const uint8_t *data, size_t size)
{
	static struct image_super super;
	struct image_trailer t = {.format = IMAGE_FORMAT};
	uint8_t digest[16] = {0};
	int fd = memfd_create("fuzz", MFD_CLOEXEC);

	memcpy(super.magic, IMAGE_SUPER_MAGIC, 8);
	super.format = IMAGE_FORMAT;
	super.page = IMAGE_PAGE;
	super.digest = XXH3_64bits(&super, offsetof(struct image_super, digest));
	memcpy(t.magic, IMAGE_TRAILER_MAGIC, 8);
	t.manifest_offset = IMAGE_DATA_OFFSET + IMAGE_PAGE;
	t.manifest_length = size;
	t.digests_offset = t.manifest_offset + size;
	t.digests_count = 1;
	t.size = t.digests_offset + 16 + sizeof(t);
	put128(t.manifest_digest, data, size);
	put128(t.digests_digest, digest, 16);
	t.digest = XXH3_64bits(&t, offsetof(struct image_trailer, digest));
	if (io_pwrite_full(fd, &super, sizeof(super), IMAGE_SUPER_OFFSET) < 0 ||
	    io_pwrite_full(fd, data, size, (off_t)t.manifest_offset) < 0 ||
	    io_pwrite_full(fd, digest, 16, (off_t)t.digests_offset) < 0 ||
	    io_pwrite_full(fd, &t, sizeof(t), (off_t)(t.size - sizeof(t))) < 0) {
		close(fd);
		return -1;
	}
	return fd;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	int fd;

	if (size > (512u << 10))
		return 0;
	fd = frame_manifest(data, size);
	if (fd >= 0)
		read_file(fd);
	fd = memfd_create("fuzz", MFD_CLOEXEC);
	if (fd >= 0 && io_write_full(fd, data, size) == 0)
		read_file(fd);
	else
		close(fd);
	return 0;
}
