/*
 * Reads an image, and checks everything before it is used.
 *
 * Opening checks the frame (superblock, trailer, sizes: a truncated or extended file fails), the manifest's
 * digest, and, walking the manifest by its descriptors, every offset in it. Verifying reads every byte.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "image/digest.h"
#include "image/hash.h"
#include "image/reader.h"
#include "proto/message.h"

int reader_damaged(const struct image_reader *reader, struct err *err, const char *what)
{
	return err_set(err, -EBADMSG, "%s is damaged: %s; use another checkpoint", reader->name, what);
}

static int read_exact(const struct image_reader *reader, void *buf, uint64_t len, uint64_t offset,
		      struct err *err)
{
	ssize_t n = io_pread_full(reader->fd, buf, len, (off_t)offset);

	if (n < 0)
		return err_code(err, (int)n, "read %s", reader->name);
	if ((uint64_t)n != len)
		return reader_damaged(reader, err, "it ends too early");
	return 0;
}

static int check_super(struct image_reader *reader, uint64_t size, struct err *err)
{
	auto_free struct image_super *super = malloc(sizeof(*super));
	int r;

	if (!super)
		return err_code(err, -ENOMEM, "read %s", reader->name);
	if (size < IMAGE_DATA_OFFSET + sizeof(struct image_trailer))
		return err_set(err, -EBADMSG,
			       "%s is not a checkpoint, or only the beginning of one (%llu bytes)",
			       reader->name, (unsigned long long)size);
	r = read_exact(reader, super, sizeof(*super), IMAGE_SUPER_OFFSET, err);
	if (r < 0)
		return r;
	if (memcmp(super->magic, IMAGE_SUPER_MAGIC, 8) != 0)
		return err_set(err, -EBADMSG, "%s is not a checkpoint", reader->name);
	if (super->format != IMAGE_FORMAT)
		return err_set(
			err, -EPROTO,
			"%s has image format %u, this scip reads format %u; use the scip that wrote it",
			reader->name, super->format, IMAGE_FORMAT);
	if (super->digest != XXH3_64bits(super, offsetof(struct image_super, digest)) ||
	    super->page != IMAGE_PAGE)
		return reader_damaged(reader, err, "its superblock (at 16384) does not match its digest");
	return 0;
}

static int check_trailer(struct image_reader *reader, uint64_t size, struct err *err)
{
	struct image_trailer *t = &reader->trailer;
	uint64_t at = size - sizeof(*t);
	int r = read_exact(reader, t, sizeof(*t), at, err);

	if (r < 0)
		return r;
	if (memcmp(t->magic, IMAGE_TRAILER_MAGIC, 8) != 0 ||
	    t->digest != XXH3_64bits(t, offsetof(struct image_trailer, digest)))
		return reader_damaged(reader, err,
				      "its end is missing, changed or followed by something else");
	if (t->format != IMAGE_FORMAT || t->size != size || t->manifest_offset < IMAGE_DATA_OFFSET ||
	    t->manifest_length > IMAGE_MANIFEST_MAX || t->manifest_offset > size ||
	    t->digests_offset != t->manifest_offset + t->manifest_length || t->digests_offset > at ||
	    t->digests_count != (t->digests_offset + IMAGE_CHUNK - 1) / IMAGE_CHUNK ||
	    at - t->digests_offset != t->digests_count * IMAGE_DIGEST)
		return reader_damaged(reader, err, "its trailer gives places that do not fit the file");
	return 0;
}

static int check_digest(const struct image_reader *reader, const void *data, uint64_t len,
			const uint8_t expected[IMAGE_DIGEST], const char *what, struct err *err)
{
	XXH128_canonical_t canonical;

	XXH128_canonicalFromHash(&canonical, XXH3_128bits(data, len));
	if (memcmp(canonical.digest, expected, IMAGE_DIGEST) != 0)
		return reader_damaged(reader, err, what);
	return 0;
}

static int load_digests(struct image_reader *reader, struct err *err)
{
	const struct image_trailer *t = &reader->trailer;
	uint64_t len = t->digests_count * IMAGE_DIGEST;
	int r;

	reader->digests = malloc(len ? len : 1);
	if (!reader->digests)
		return err_code(err, -ENOMEM, "read %s", reader->name);
	r = read_exact(reader, reader->digests, len, t->digests_offset, err);
	if (r < 0)
		return r;
	return check_digest(reader, reader->digests, len, t->digests_digest,
			    "its digest table does not match its digest", err);
}

static int load_manifest(struct image_reader *reader, struct err *err)
{
	const struct image_trailer *t = &reader->trailer;
	auto_free uint8_t *packed = malloc(t->manifest_length ? t->manifest_length : 1);
	int r;

	if (!packed)
		return err_code(err, -ENOMEM, "read %s", reader->name);
	r = read_exact(reader, packed, t->manifest_length, t->manifest_offset, err);
	if (r == 0)
		r = check_digest(reader, packed, t->manifest_length, t->manifest_digest,
				 "its manifest does not match its digest", err);
	if (r < 0)
		return r;
	reader->manifest = pbeam__manifest__unpack(NULL, t->manifest_length, packed);
	if (!reader->manifest)
		return reader_damaged(reader, err, "its manifest cannot be read");
	if (reader->manifest->format != IMAGE_FORMAT)
		return reader_damaged(reader, err, "its manifest is of another format");
	return 0;
}

bool reader_in_data(const struct image_reader *reader, uint64_t offset, uint64_t length)
{
	uint64_t end = reader->trailer.manifest_offset;

	return length == 0 || (offset >= IMAGE_DATA_OFFSET && offset <= end && length <= end - offset);
}

/* Opening the chain checks whether the ancestor has the pages. */
static int check_ancestor(struct image_reader *reader, const Pbeam__Pages *pages, struct err *err)
{
	if (!reader->manifest->parent || pages->ancestor > IMAGE_ANCESTORS_MAX || pages->offset ||
	    pages->ancestor_offset % IMAGE_PAGE)
		return reader_damaged(reader, err, "its manifest points to pages that no parent has");
	if (reader->depth < pages->ancestor)
		reader->depth = pages->ancestor;
	return 0;
}

struct check {
	struct image_reader *reader;
	struct err *err;
};

static int check_place(void *arg, ProtobufCMessage *message)
{
	const struct check *check = arg;
	const struct image_reader *reader = check->reader;
	struct err *err = check->err;

	if (message->descriptor == &pbeam__extent__descriptor) {
		const Pbeam__Extent *extent = (const Pbeam__Extent *)(const void *)message;

		if (!reader_in_data(reader, extent->offset, extent->length))
			return reader_damaged(reader, err, "its manifest points to data outside the file");
	} else if (message->descriptor == &pbeam__pages__descriptor) {
		const Pbeam__Pages *pages = (const Pbeam__Pages *)(const void *)message;

		if (pages->count > UINT64_MAX / IMAGE_PAGE || pages->address % IMAGE_PAGE ||
		    pages->offset % IMAGE_PAGE || pages->address > UINT64_MAX - pages->count * IMAGE_PAGE)
			return reader_damaged(reader, err, "its manifest points to pages outside the file");
		if (pages->ancestor >= IMAGE_BLOCKS_FIRST)
			return 0; /* reader_check_blocks() */
		if (pages->ancestor)
			return check_ancestor(check->reader, pages, err);
		if (!(reader->manifest->partial && pages->offset == 0) &&
		    !reader_in_data(reader, pages->offset, pages->count * IMAGE_PAGE))
			return reader_damaged(reader, err, "its manifest points to pages outside the file");
	}
	return 0;
}

int image_reader_open_fd(struct image_reader **out, int fd, const char *name, struct err *err)
{
	struct image_reader *reader = calloc(1, sizeof(*reader));
	struct stat st;
	int r;

	if (!reader || !(reader->name = strdup(name))) {
		free(reader);
		close(fd);
		return err_code(err, -ENOMEM, "open %s", name);
	}
	reader->fd = fd;
	if (fstat(fd, &st) < 0)
		r = err_sys(err, "look at %s", name);
	else if (!S_ISREG(st.st_mode))
		r = err_set(err, -EINVAL, "%s is not a regular file, so not a checkpoint", name);
	else
		r = check_super(reader, (uint64_t)st.st_size, err);
	if (r == 0)
		r = check_trailer(reader, (uint64_t)st.st_size, err);
	if (r == 0)
		r = load_digests(reader, err);
	if (r == 0)
		r = load_manifest(reader, err);
	if (r == 0)
		r = reader_check_parent(reader, err);
	if (r == 0)
		r = message_walk(&reader->manifest->base, check_place, &(struct check){reader, err});
	if (r == 0)
		r = reader_check_blocks(reader, err);
	if (r < 0) {
		image_reader_close(reader);
		return r;
	}
	*out = reader;
	return 0;
}

int image_reader_open(struct image_reader **out, const char *path, struct err *err)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);

	int r;

	if (fd < 0)
		return err_sys(err, "open checkpoint %s", path);
	r = image_reader_open_fd(out, fd, path, err);
	if (r == 0)
		(*out)->has_path = true;
	return r;
}

int image_reader_of_manifest(struct image_reader **out, const char *name, const Pbeam__Manifest *manifest,
			     struct err *err)
{
	struct image_reader *reader = calloc(1, sizeof(*reader));

	if (!reader || !(reader->name = strdup(name))) {
		free(reader);
		return err_code(err, -ENOMEM, "look at %s", name);
	}
	reader->fd = -1;
	reader->manifest = (Pbeam__Manifest *)(uintptr_t)manifest;
	reader->borrowed = true;
	*out = reader;
	return 0;
}

const Pbeam__Manifest *image_reader_manifest(const struct image_reader *reader)
{
	return reader->manifest;
}

int image_reader_fd(const struct image_reader *reader)
{
	return reader->fd;
}

uint64_t image_reader_size(const struct image_reader *reader)
{
	return reader->trailer.size;
}

/* Returns the section of the file with this offset, for messages. */
static const char *section_of(const struct image_reader *reader, uint64_t offset)
{
	if (offset < IMAGE_DATA_OFFSET)
		return "its head";
	return offset < reader->trailer.manifest_offset ? "its data" : "its manifest";
}

int image_reader_verify(struct image_reader *reader, struct err *err)
{
	return image_reader_verify_but(reader, NULL, err);
}

uint64_t image_reader_data_end(const struct image_reader *reader)
{
	return reader->trailer.manifest_offset;
}

uint64_t image_reader_digests(const struct image_reader *reader)
{
	return reader->trailer.digests_offset;
}

bool image_check_chunk(int fd, uint64_t digests, uint64_t chunk, const void *data)
{
	uint8_t expected[IMAGE_DIGEST];
	XXH128_canonical_t canonical;

	if (io_pread_full(fd, expected, sizeof(expected), (off_t)(digests + chunk * IMAGE_DIGEST)) !=
	    (ssize_t)sizeof(expected))
		return false;
	XXH128_canonicalFromHash(&canonical, XXH3_128bits(data, IMAGE_CHUNK));
	return memcmp(canonical.digest, expected, IMAGE_DIGEST) == 0;
}

static int verify_file(const struct image_reader *reader, const uint8_t *skip, struct err *err)
{
	int64_t bad = digest_check(reader->fd, reader->trailer.digests_offset,
				   (const uint8_t(*)[IMAGE_DIGEST])reader->digests, skip);
	uint64_t offset;

	if (bad == -1)
		return 0;
	if (bad < -1)
		return err_code(err, (int)(bad + 1), "read %s", reader->name);
	offset = (uint64_t)bad * IMAGE_CHUNK;
	return err_set(
		err, -EBADMSG,
		"%s is damaged: %s does not match its digest between %llu and %llu; use another checkpoint",
		reader->name, section_of(reader, offset), (unsigned long long)offset,
		(unsigned long long)offset + IMAGE_CHUNK);
}

int image_reader_verify_but(struct image_reader *reader, const uint8_t *skip, struct err *err)
{
	int r = image_reader_open_chain(reader, err);

	if (r < 0)
		return r;
	r = verify_file(reader, skip, err);
	for (uint32_t i = 0; i < reader->depth && r == 0; i++)
		r = verify_file(reader->chain[i], NULL, err);
	return r < 0 ? r : reader_verify_blocks(reader, err);
}

int image_reader_get(struct image_reader *reader, const Pbeam__Extent *where, void *buf, struct err *err)
{
	return read_exact(reader, buf, where->length, where->offset, err);
}

void image_reader_close(struct image_reader *reader)
{
	if (!reader)
		return;
	for (uint32_t i = 0; i < reader->nchain; i++)
		image_reader_close(reader->chain[i]);
	reader_close_blocks(reader);
	if (reader->manifest && !reader->borrowed)
		pbeam__manifest__free_unpacked(reader->manifest, NULL);
	free(reader->digests);
	free(reader->name);
	if (reader->fd >= 0)
		close(reader->fd);
	free(reader);
}
