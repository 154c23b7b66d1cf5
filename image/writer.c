/*
 * Writes an image: a temporary file beside the final path, written by many processes, then manifest, digests,
 * sync, rename.
 *
 * A thread digests chunks as they become complete (image_arena_written()), so that at the commit, when pages
 * of a gigabyte have just been written, little is left to read. It digests the chunks in order, which is
 * nearly the order in which the arena allocates them.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "image/arena.h"
#include "image/digest.h"
#include "image/file_replace.h"
#include "image/hash.h"
#include "image/reader.h"

#define AHEAD_CHUNKS_MAX (1u << 16) /* chunks digested while the file is being written: its first 64 GiB */

extern const uint8_t image_stub_start[], image_stub_end[];

struct image_writer {
	int fd, arena_fd;
	struct image_arena *arena;
	char path[PATH_MAX], temporary[PATH_MAX];
	bool committed;
	struct blocks *blocks; /* or NULL */
	/* digests chunks before the commit */
	pthread_t thread;
	bool have_thread;
	_Atomic bool stop;
	uint8_t (*ahead)[IMAGE_DIGEST];
	uint8_t *ahead_done;
};

static void *ahead_thread(void *arg)
{
	struct image_writer *writer = arg;
	const struct timespec nap = {.tv_nsec = 500000};

	for (uint64_t chunk = 0; chunk < AHEAD_CHUNKS_MAX && !atomic_load(&writer->stop);) {
		if (atomic_load(&writer->arena->chunk_bytes[chunk]) < IMAGE_CHUNK) {
			nanosleep(&nap, NULL);
			continue;
		}
		if (digest_range(writer->fd, chunk * IMAGE_CHUNK, IMAGE_CHUNK, writer->ahead[chunk]) == 0)
			writer->ahead_done[chunk] = 1;
		chunk++;
	}
	return NULL;
}

static void ahead_start(struct image_writer *writer)
{
	void *digests = mmap(NULL, AHEAD_CHUNKS_MAX * IMAGE_DIGEST, PROT_READ | PROT_WRITE,
			     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	void *done = calloc(AHEAD_CHUNKS_MAX, 1);

	if (digests == MAP_FAILED || !done) {
		free(done);
		return; /* the commit digests all chunks */
	}
	writer->ahead = digests;
	writer->ahead_done = done;
	writer->have_thread = pthread_create(&writer->thread, NULL, ahead_thread, writer) == 0;
}

static void ahead_stop(struct image_writer *writer)
{
	if (!writer->have_thread)
		return;
	atomic_store(&writer->stop, true);
	pthread_join(writer->thread, NULL);
	writer->have_thread = false;
}

static int write_head(struct image_writer *writer, struct err *err)
{
	size_t stub = (size_t)(image_stub_end - image_stub_start);
	auto_free struct image_super *super = calloc(1, sizeof(*super));
	int r;

	if (!super)
		return err_code(err, -ENOMEM, "write %s", writer->temporary);
	memcpy(super->magic, IMAGE_SUPER_MAGIC, 8);
	super->format = IMAGE_FORMAT;
	super->page = IMAGE_PAGE;
	super->created_ns = io_now_ns(CLOCK_REALTIME);
	if (io_readlink(AT_FDCWD, "/proc/self/exe", super->scip, sizeof(super->scip)) < 0)
		super->scip[0] = 0;
	super->digest = XXH3_64bits(super, offsetof(struct image_super, digest));
	r = io_pwrite_full(writer->fd, image_stub_start, stub, 0);
	if (r == 0)
		r = io_pwrite_full(writer->fd, super, sizeof(*super), IMAGE_SUPER_OFFSET);
	if (r < 0)
		return err_code(err, r, "write %s", writer->temporary);
	image_arena_written(writer->arena, 0, IMAGE_DATA_OFFSET);
	return 0;
}

static int open_temporary(struct image_writer *writer, const char *path, struct err *err)
{
	struct stat st;

	if (!path) {
		snprintf(writer->temporary, sizeof(writer->temporary), "the image in memory");
		writer->fd = memfd_create("pbeam-image", MFD_CLOEXEC);
		return writer->fd < 0 ? err_sys(err, "create a memory file") : 0;
	}
	if (snprintf(writer->path, sizeof(writer->path), "%s", path) >= (int)sizeof(writer->path) - 32)
		return err_code(err, -ENAMETOOLONG, "create %s", path);
	if (lstat(path, &st) == 0 && !S_ISREG(st.st_mode))
		return err_set(err, -EEXIST, "%s exists and is not a regular file; give another path", path);
	snprintf(writer->temporary, sizeof(writer->temporary), "%.*s.tmp-%d", PATH_MAX - 32, path,
		 (int)getpid());
	unlink(writer->temporary); /* left by a killed process with the same number */
	writer->fd = open(writer->temporary, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0700);
	if (writer->fd < 0)
		return err_sys(err, "create %s", writer->temporary);
	if (fchmod(writer->fd, 0700) < 0)
		return err_sys(err, "set the mode of %s", writer->temporary);
	return 0;
}

int image_writer_open(struct image_writer **out, const char *path, uint64_t expect_pages, struct err *err)
{
	struct image_writer *writer = calloc(1, sizeof(*writer));
	int r;

	if (!writer)
		return err_code(err, -ENOMEM, "create %s", path ? path : "an image");
	writer->fd = writer->arena_fd = -1;
	r = open_temporary(writer, path, err);
	if (r == 0)
		r = image_arena_create(expect_pages, &writer->arena_fd, &writer->arena, err);
	if (r == 0)
		r = write_head(writer, err);
	if (r < 0) {
		image_writer_close(writer);
		return r;
	}
	ahead_start(writer);
	*out = writer;
	return 0;
}

int image_writer_hide(struct image_writer *writer, struct err *err)
{
	if (unlink(writer->temporary) < 0)
		return err_sys(err, "take the name from %s", writer->temporary);
	writer->path[0] = 0;
	return 0;
}

int image_writer_fd(const struct image_writer *writer)
{
	return writer->fd;
}

const char *image_writer_path(const struct image_writer *writer)
{
	return writer->path;
}

int image_writer_arena_fd(const struct image_writer *writer)
{
	return writer->arena_fd;
}

struct image_arena *image_writer_arena(const struct image_writer *writer)
{
	return writer->arena;
}

int image_writer_put(struct image_writer *writer, const void *data, uint64_t len, Pbeam__Extent *where,
		     struct err *err)
{
	int r;

	where->length = len;
	where->offset = image_arena_take(writer->arena, len);
	r = io_pwrite_full(writer->fd, data, len, (off_t)where->offset);
	if (r < 0)
		return err_code(err, r, "write %s", writer->temporary);
	image_arena_written(writer->arena, where->offset, len);
	return 0;
}

int image_writer_use_blocks(struct image_writer *writer, const Pbeam__Manifest *newest, struct err *err)
{
	return blocks_open(&writer->blocks, writer->path, newest, err);
}

struct blocks *image_writer_blocks(const struct image_writer *writer)
{
	return writer->blocks;
}

/* Writes the packed manifest after the data, and fills in the trailer's fields for it. */
static int store_manifest(struct image_writer *writer, const Pbeam__Manifest *manifest,
			  struct image_trailer *trailer, struct err *err)
{
	size_t len = pbeam__manifest__get_packed_size(manifest);
	auto_free uint8_t *packed = malloc(len ? len : 1);
	XXH128_canonical_t canonical;
	int r;

	if (!packed)
		return err_code(err, -ENOMEM, "pack the manifest");
	if (len > IMAGE_MANIFEST_MAX)
		return err_set(err, -EFBIG, "the manifest has %zu bytes, more than an image can hold", len);
	pbeam__manifest__pack(manifest, packed);
	trailer->manifest_offset = image_arena_take(writer->arena, 0);
	trailer->manifest_length = len;
	XXH128_canonicalFromHash(&canonical, XXH3_128bits(packed, len));
	memcpy(trailer->manifest_digest, canonical.digest, IMAGE_DIGEST);
	r = io_pwrite_full(writer->fd, packed, len, (off_t)trailer->manifest_offset);
	return r < 0 ? err_code(err, r, "write %s", writer->temporary) : 0;
}

static int write_digests(struct image_writer *writer, struct image_trailer *trailer, struct err *err)
{
	uint64_t end = trailer->manifest_offset + trailer->manifest_length;
	uint64_t n = (end + IMAGE_CHUNK - 1) / IMAGE_CHUNK, ahead;
	auto_free uint8_t(*digests)[IMAGE_DIGEST] = calloc(n, IMAGE_DIGEST);
	auto_free uint8_t *done = calloc(n, 1);
	XXH128_canonical_t canonical;
	int r;

	if (!digests || !done)
		return err_code(err, -ENOMEM, "digest %s", writer->temporary);
	ahead_stop(writer);
	ahead = n < AHEAD_CHUNKS_MAX ? n : AHEAD_CHUNKS_MAX;
	/* The last chunk has the manifest's end: never complete before now. */
	if (writer->ahead_done && ahead) {
		memcpy(done, writer->ahead_done, ahead);
		memcpy(digests, writer->ahead, ahead * IMAGE_DIGEST);
	}
	r = digest_chunks(writer->fd, end, digests, done);
	if (r < 0)
		return err_code(err, r, "digest %s", writer->temporary);
	trailer->digests_offset = end;
	trailer->digests_count = n;
	XXH128_canonicalFromHash(&canonical, XXH3_128bits(digests, n * IMAGE_DIGEST));
	memcpy(trailer->digests_digest, canonical.digest, IMAGE_DIGEST);
	r = io_pwrite_full(writer->fd, digests, n * IMAGE_DIGEST, (off_t)end);
	return r < 0 ? err_code(err, r, "write %s", writer->temporary) : 0;
}

int image_writer_commit(struct image_writer *writer, Pbeam__Manifest *manifest, bool durable, uint64_t *bytes,
			struct err *err)
{
	struct image_trailer trailer = {.format = IMAGE_FORMAT};
	uint64_t at, others = 0;
	int r;

	memcpy(trailer.magic, IMAGE_TRAILER_MAGIC, 8);
	r = writer->blocks ? blocks_commit(writer->blocks, manifest, durable, &others, err) : 0;
	if (r == 0)
		r = store_manifest(writer, manifest, &trailer, err);
	if (r == 0)
		r = write_digests(writer, &trailer, err);
	if (r < 0)
		return r;
	at = trailer.digests_offset + trailer.digests_count * IMAGE_DIGEST;
	trailer.size = at + sizeof(trailer);
	trailer.digest = XXH3_64bits(&trailer, offsetof(struct image_trailer, digest));
	r = io_pwrite_full(writer->fd, &trailer, sizeof(trailer), (off_t)at);
	if (r < 0)
		return err_code(err, r, "write %s", writer->temporary);
	if (durable && fsync(writer->fd) < 0)
		return err_sys(err, "sync %s", writer->temporary);
	*bytes = trailer.size + others;
	if (!writer->path[0])
		return 0;
	r = file_replace_commit(writer->temporary, writer->path, durable, &writer->committed, err);
	if (writer->committed && writer->blocks)
		blocks_keep(writer->blocks);
	return r;
}

void image_writer_close(struct image_writer *writer)
{
	if (!writer)
		return;
	ahead_stop(writer);
	blocks_close(writer->blocks);
	if (writer->ahead)
		munmap(writer->ahead, AHEAD_CHUNKS_MAX * IMAGE_DIGEST);
	free(writer->ahead_done);
	if (!writer->committed && writer->fd >= 0 && writer->path[0])
		unlink(writer->temporary);
	if (writer->fd >= 0)
		close(writer->fd);
	if (writer->arena_fd >= 0)
		close(writer->arena_fd);
	image_arena_unmap(writer->arena);
	free(writer);
}
