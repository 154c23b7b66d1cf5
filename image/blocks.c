/* Files N.blocks: writing one. */
#include "image/blocks.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "image/blocks_layout.h"
#include "image/digest.h"
#include "image/file_undo.h"
#include "image/hash.h"
#include "image/image.h"
#include "image/layout.h"
#include "proto/message.h"

#define NOWHERE	  UINT32_MAX
#define GROUP	  (1u << 20) /* is read at once */
#define PER_GROUP (GROUP / BLOCKS_SIZE)

struct place {
	uint32_t source; /* index of the file N.blocks; NOWHERE: the block is zeros */
	uint32_t slot;
};
struct source {
	char *name;
	struct blocks_pack pack; /* fd -1: the file that is being written */
	uint32_t listed;	 /* index in manifest->blocks, + 1 */
};
/* A file as it was read last. */
struct known {
	uint64_t dev, ino, size, ctime_ns, seen_ns;
	bool mapped;  /* may have been changed through a mapping without a change of its times */
	bool current; /* read by this capture */
	uint64_t n;
	struct place *v;
};
struct blocks {
	char directory[PATH_MAX], path[PATH_MAX + 64];
	int fd; /* -1: not made yet */
	bool kept;
	struct source *sources; /* the last one is the file that is being written */
	uint32_t nsources;
	uint8_t (*digests)[BLOCKS_DIGEST]; /* of its blocks */
	uint64_t room;
	_Atomic uint64_t used;
	struct known *files;
	size_t nfiles;
};

static uint32_t own_source(const struct blocks *blocks)
{
	return blocks->nsources - 1;
}

/* ---- what the newest image has ---- */

static const char *base_name(const char *path)
{
	const char *slash = strrchr(path, '/');

	return slash ? slash + 1 : path;
}

static int add_source(struct blocks *blocks, const char *name)
{
	struct source *more = reallocarray(blocks->sources, blocks->nsources + 1, sizeof(*more));

	if (!more)
		return -ENOMEM;
	blocks->sources = more;
	more[blocks->nsources] = (struct source){.name = strdup(name), .pack = {.fd = -1}};
	return more[blocks->nsources++].name ? 0 : -ENOMEM;
}

static struct known *add_known(struct blocks *blocks, uint64_t dev, uint64_t ino, uint64_t size)
{
	uint64_t n = (size + BLOCKS_SIZE - 1) / BLOCKS_SIZE;
	struct known *more = reallocarray(blocks->files, blocks->nfiles + 1, sizeof(*more));
	struct place *v = malloc((n + 1) * sizeof(*v));

	if (more)
		blocks->files = more;
	if (!more || !v) {
		free(v);
		return NULL;
	}
	for (uint64_t i = 0; i < n; i++)
		v[i] = (struct place){NOWHERE, 0};
	more[blocks->nfiles] = (struct known){.dev = dev, .ino = ino, .size = size, .n = n, .v = v};
	return &more[blocks->nfiles++];
}

static struct known *blocks_find_file(const struct blocks *blocks, uint64_t dev, uint64_t ino)
{
	for (size_t i = 0; i < blocks->nfiles; i++)
		if (blocks->files[i].ino == ino && blocks->files[i].dev == dev)
			return &blocks->files[i];
	return NULL;
}

/* The image has been checked: its runs are in the files that it names. */
static void take_runs(const struct blocks *blocks, struct known *known, Pbeam__Pages *const *pages, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		const Pbeam__Pages *run = pages[i];
		uint64_t first = run->address / BLOCKS_SIZE, slot = run->ancestor_offset / BLOCKS_SIZE - 1;
		uint64_t count = (run->count * IMAGE_PAGE + BLOCKS_SIZE - 1) / BLOCKS_SIZE;
		uint32_t source = run->ancestor - IMAGE_BLOCKS_FIRST;

		if (run->ancestor < IMAGE_BLOCKS_FIRST || run->address % BLOCKS_SIZE ||
		    run->ancestor_offset % BLOCKS_SIZE || blocks->sources[source].pack.fd < 0)
			continue;
		for (uint64_t k = 0; k < count && first + k < known->n; k++)
			if (slot + k < blocks->sources[source].pack.n)
				known->v[first + k] = (struct place){source, (uint32_t)(slot + k)};
	}
}

static int take_files(struct blocks *blocks, const Pbeam__Manifest *manifest)
{
	for (size_t i = 0; i < manifest->n_files; i++) {
		const Pbeam__SavedFile *file = manifest->files[i];
		struct known *known;

		if (!file->n_pages || file->pages[0]->ancestor < IMAGE_BLOCKS_FIRST || !file->file)
			continue;
		known = add_known(blocks, file->file->dev, file->file->ino, file->file->size);
		if (!known)
			return -ENOMEM;
		known->ctime_ns = file->ctime_ns;
		known->seen_ns = manifest->created_ns;
		for (size_t k = 0; k < manifest->n_shared; k++)
			known->mapped |= manifest->shared[k]->ino == known->ino;
		take_runs(blocks, known, file->pages, file->n_pages);
	}
	for (size_t i = 0; i < manifest->n_shared; i++) {
		const Pbeam__SharedMemory *shared = manifest->shared[i];
		struct known *known;

		if (!shared->n_pages || shared->pages[0]->ancestor < IMAGE_BLOCKS_FIRST || !shared->file ||
		    blocks_find_file(blocks, shared->file->dev, shared->file->ino))
			continue;
		known = add_known(blocks, shared->file->dev, shared->file->ino, shared->size);
		if (!known)
			return -ENOMEM;
		known->mapped = true;
		take_runs(blocks, known, shared->pages, shared->n_pages);
	}
	return 0;
}

/* Takes what can be read: a source that is missing or another one is not shared. */
static int take_sources(struct blocks *blocks, const Pbeam__Manifest *manifest)
{
	int r = 0;

	for (size_t i = 0; i < manifest->n_blocks && r == 0; i++) {
		const Pbeam__ImageParent *named = manifest->blocks[i];
		char path[PATH_MAX + 300];
		struct blocks_pack pack;

		r = add_source(blocks, named->name);
		snprintf(path, sizeof(path), "%s/%.255s", blocks->directory, named->name);
		if (r < 0 || blocks_pack_open(&pack, path, NULL) < 0)
			continue;
		if (memcmp(pack.identity, named->identity.data, BLOCKS_DIGEST) == 0)
			blocks->sources[i].pack = pack;
		else
			blocks_pack_close(&pack);
	}
	return r < 0 ? r : take_files(blocks, manifest);
}

int blocks_open(struct blocks **out, const char *path, const Pbeam__Manifest *newest, struct err *err)
{
	struct blocks *blocks = calloc(1, sizeof(*blocks));
	unsigned long number = strtoul(base_name(path), NULL, 10);
	char name[64];
	int r = blocks ? 0 : -ENOMEM;

	*out = blocks;
	if (!blocks)
		return err_code(err, r, "save large files");
	blocks->fd = -1;
	snprintf(blocks->directory, sizeof(blocks->directory), "%.*s", (int)(base_name(path) - path), path);
	snprintf(name, sizeof(name), "%lu" BLOCKS_SUFFIX, number);
	snprintf(blocks->path, sizeof(blocks->path), "%s%s", blocks->directory, name);
	r = !number ? -EINVAL : newest ? take_sources(blocks, newest) : 0;
	if (r == 0)
		r = add_source(blocks, name);
	return r < 0 ? err_code(err, r, "look for what %s can share", blocks->path) : 0;
}

/* ---- storing ---- */

static int blocks_make_own(struct blocks *blocks, struct err *err)
{
	if (blocks->fd >= 0)
		return 0;
	unlink(blocks->path); /* left by a killed process: the number is ours */
	blocks->fd = open(blocks->path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (blocks->fd < 0 || flock(blocks->fd, LOCK_EX | LOCK_NB) < 0)
		return err_sys(err, "create %s", blocks->path);
	if (pwrite(blocks->fd, BLOCKS_HEAD_MAGIC, 8, 0) != 8)
		return err_sys(err, "write %s", blocks->path);
	return 0;
}

static uint64_t bytes_of_data(int fd, uint64_t size)
{
	struct stat st;
	uint64_t bytes = fstat(fd, &st) == 0 ? (uint64_t)st.st_blocks * 512 : size;

	return bytes < size ? bytes : size;
}

/* Allocates room for all blocks of a file that no image has; where the file system cannot, looks whether it
 * is there. */
static int reserve(struct blocks *blocks, uint64_t bytes, struct err *err)
{
	uint64_t at = blocks_offset(atomic_load(&blocks->used));
	struct statvfs fs;

	if (!bytes)
		return 0;
	if (fallocate(blocks->fd, 0, (off_t)at, (off_t)bytes) == 0)
		return 0;
	if (errno != ENOSPC && errno != EDQUOT && fstatvfs(blocks->fd, &fs) == 0 &&
	    (uint64_t)fs.f_bavail * fs.f_frsize > bytes)
		return 0;
	return err_set(err, -ENOSPC,
		       "%llu MiB are needed in %s to save it, which are not free; free them, or leave it out "
		       "with --save-files SIZE",
		       (unsigned long long)(bytes >> 20), blocks->directory);
}

struct adding {
	struct blocks *blocks;
	int fd;
	uint64_t size;
	const struct known *old; /* or NULL */
	struct place *v;
};

static const uint8_t *digest_at(const struct blocks *blocks, struct place place)
{
	return place.source == own_source(blocks) ? blocks->digests[place.slot]
						  : blocks->sources[place.source].pack.digests[place.slot];
}

static bool is_zero(const uint8_t *block)
{
	return block[0] == 0 && memcmp(block, block + 1, BLOCKS_SIZE - 1) == 0;
}

/* Finds the place of a block, unless it must be stored: returns true then, with its digest. */
static bool must_store(const struct adding *adding, uint64_t i, const uint8_t *block, uint8_t *digest)
{
	const struct known *old = adding->old;
	XXH128_canonical_t canonical;

	if (is_zero(block))
		return false;
	XXH128_canonicalFromHash(&canonical, XXH3_128bits(block, BLOCKS_SIZE));
	memcpy(digest, canonical.digest, BLOCKS_DIGEST);
	if (!old || i >= old->n || old->v[i].source == NOWHERE ||
	    memcmp(digest_at(adding->blocks, old->v[i]), digest, BLOCKS_DIGEST) != 0)
		return true;
	adding->v[i] = old->v[i];
	return false;
}

/* Stores the marked blocks of a group in successive slots. */
static int store_group(const struct adding *adding, uint64_t first, const uint8_t *data, const bool *store,
		       uint8_t (*digests)[BLOCKS_DIGEST], unsigned count)
{
	struct blocks *blocks = adding->blocks;
	uint64_t slot = atomic_fetch_add(&blocks->used, count);
	int r = 0;

	if (slot + count > blocks->room || slot + count >= NOWHERE)
		return -EFBIG;
	for (unsigned i = 0, n; i < PER_GROUP && r == 0; i += n ? n : 1) {
		for (n = 0; i + n < PER_GROUP && store[i + n]; n++) {
			adding->v[first + i + n] = (struct place){own_source(blocks), (uint32_t)(slot + n)};
			memcpy(blocks->digests[slot + n], digests[i + n], BLOCKS_DIGEST);
		}
		if (n)
			r = io_pwrite_full(blocks->fd, data + (size_t)i * BLOCKS_SIZE,
					   (size_t)n * BLOCKS_SIZE, (off_t)blocks_offset(slot));
		slot += n;
	}
	return r;
}

static int add_group(void *arg, uint64_t number)
{
	const struct adding *adding = arg;
	uint64_t start = number * GROUP, first = number * PER_GROUP;
	uint64_t len = adding->size - start < GROUP ? adding->size - start : GROUP;
	off_t data = lseek(adding->fd, (off_t)start, SEEK_DATA);
	uint8_t digests[PER_GROUP][BLOCKS_DIGEST];
	bool store[PER_GROUP] = {false};
	auto_free uint8_t *room = NULL;
	unsigned count = 0;
	ssize_t n;

	if ((data < 0 && errno == ENXIO) || (data >= 0 && (uint64_t)data >= start + len))
		return 0; /* a hole */
	room = malloc(GROUP);
	if (!room)
		return -ENOMEM;
	n = io_pread_full(adding->fd, room, len, (off_t)start);
	if (n < 0)
		return (int)n;
	memset(room + n, 0, GROUP - (size_t)n);
	for (unsigned i = 0; (uint64_t)i * BLOCKS_SIZE < len; i++) {
		store[i] = must_store(adding, first + i, room + (size_t)i * BLOCKS_SIZE, digests[i]);
		count += store[i];
	}
	return count ? store_group(adding, first, room, store, digests, count) : 0;
}

/* Reads the file. */
static int blocks_read_file(struct blocks *blocks, int fd, const struct stat *st, struct known *now,
			    const struct known *old, struct err *err)
{
	struct adding adding = {blocks, fd, now->size, old, now->v};
	uint64_t room = atomic_load(&blocks->used) + now->n;
	void *digests = reallocarray(blocks->digests, room + 1, BLOCKS_DIGEST);
	int r;

	if (!digests)
		return err_code(err, -ENOMEM, "save its contents");
	blocks->digests = digests;
	blocks->room = room;
	r = blocks_make_own(blocks, err);
	if (r == 0 && !old)
		r = reserve(blocks, bytes_of_data(fd, now->size), err);
	if (r < 0)
		return r;
	now->seen_ns = io_now_ns(CLOCK_REALTIME);
	now->ctime_ns = (uint64_t)st->st_ctim.tv_sec * 1000000000u + (uint64_t)st->st_ctim.tv_nsec;
	r = digest_each((now->size + GROUP - 1) / GROUP, add_group, &adding);
	return r < 0 ? err_code(err, r, "save its contents in %s", blocks->path) : 0;
}

static bool is_unchanged(const struct known *known, const struct stat *st)
{
	uint64_t ctime = io_time_ns(&st->st_ctim);

	return known->current || (!known->mapped && known->size == (uint64_t)st->st_size &&
				  known->ctime_ns == ctime && ctime + FILE_TICK_NS < known->seen_ns);
}

/* ---- the manifest ---- */

/* Returns the number by which runs name the source, 0 without memory. */
static uint32_t list_source(struct blocks *blocks, uint32_t index, Pbeam__Manifest *manifest)
{
	struct source *source = &blocks->sources[index];
	Pbeam__ImageParent *named;

	if (!source->listed) {
		named = message_add(manifest, blocks, pbeam__image_parent__descriptor);
		if (!named || message_string(&named->name, source->name) < 0 ||
		    message_bytes(&named->identity, source->pack.identity, BLOCKS_DIGEST) < 0)
			return 0;
		source->listed = (uint32_t)manifest->n_blocks;
	}
	return IMAGE_BLOCKS_FIRST + source->listed - 1;
}

static int list_runs(struct blocks *blocks, const struct known *file, Pbeam__Manifest *manifest, size_t *n,
		     Pbeam__Pages ***pages)
{
	uint64_t end = (file->size + IMAGE_PAGE - 1) & ~(uint64_t)(IMAGE_PAGE - 1), count;

	for (uint64_t i = 0; i < file->n; i += count) {
		struct place first = file->v[i];
		uint64_t start = i * BLOCKS_SIZE, stop;
		Pbeam__Pages *run;

		for (count = 1; i + count < file->n; count++)
			if (file->v[i + count].source != first.source ||
			    (first.source != NOWHERE && file->v[i + count].slot != first.slot + count))
				break;
		if (first.source == NOWHERE)
			continue;
		run = message_append_new(pages, n, &pbeam__pages__descriptor);
		if (!run)
			return -ENOMEM;
		stop = start + count * BLOCKS_SIZE < end ? start + count * BLOCKS_SIZE : end;
		run->address = start;
		run->count = (stop - start) / IMAGE_PAGE;
		run->ancestor = list_source(blocks, first.source, manifest);
		run->ancestor_offset = blocks_offset(first.slot);
		if (!run->ancestor)
			return -ENOMEM;
	}
	return 0;
}

/* Reads the file unless it is as it was read last. Returns its entry, NULL on failure. */
static struct known *look_at_file(struct blocks *blocks, int fd, const struct stat *st, struct err *err)
{
	struct known *old = blocks_find_file(blocks, st->st_dev, st->st_ino), *now;
	size_t at = old ? (size_t)(old - blocks->files) : 0;
	bool has_old = old != NULL;

	if (old && is_unchanged(old, st))
		return old;
	now = add_known(blocks, st->st_dev, st->st_ino, (uint64_t)st->st_size);
	if (!now) {
		err_code(err, -ENOMEM, "save its contents");
		return NULL;
	}
	if (blocks_read_file(blocks, fd, st, now, has_old ? &blocks->files[at] : NULL, err) < 0) {
		free(blocks->files[--blocks->nfiles].v);
		return NULL;
	}
	if (!has_old)
		return now;
	free(blocks->files[at].v); /* the new entry takes its place */
	blocks->files[at] = blocks->files[--blocks->nfiles];
	return &blocks->files[at];
}

int blocks_add(struct blocks *blocks, int fd, const struct stat *st, Pbeam__Manifest *manifest, size_t *n,
	       Pbeam__Pages ***pages, struct err *err)
{
	struct known *file = look_at_file(blocks, fd, st, err);
	int r;

	if (!file)
		return err->code;
	file->current = true;
	r = list_runs(blocks, file, manifest, n, pages);
	return r < 0 ? err_code(err, r, "save its contents") : 0;
}

int blocks_ahead(struct blocks *blocks, int fd, const struct stat *st, struct err *err)
{
	struct known *old = blocks_find_file(blocks, st->st_dev, st->st_ino), *file;

	if (old && is_unchanged(old, st))
		return 0;
	file = look_at_file(blocks, fd, st, err);
	if (!file)
		return err->code;
	file->mapped = true; /* perhaps: it is read again */
	return 0;
}

/* ---- the end ---- */

int blocks_commit(struct blocks *blocks, Pbeam__Manifest *manifest, bool durable, uint64_t *bytes,
		  struct err *err)
{
	struct blocks_tail tail = {.format = BLOCKS_FORMAT, .n = atomic_load(&blocks->used)};
	const struct source *own = &blocks->sources[own_source(blocks)];
	uint64_t at = blocks_offset(tail.n), table = tail.n * BLOCKS_DIGEST;
	XXH128_canonical_t canonical;
	int r;

	if (!own->listed)
		return 0;
	XXH128_canonicalFromHash(&canonical, XXH3_128bits(blocks->digests, table));
	memcpy(tail.magic, BLOCKS_TAIL_MAGIC, sizeof(tail.magic));
	memcpy(tail.identity, canonical.digest, BLOCKS_DIGEST);
	tail.digest = XXH3_64bits(&tail, offsetof(struct blocks_tail, digest));
	r = message_bytes(&manifest->blocks[own->listed - 1]->identity, tail.identity, BLOCKS_DIGEST);
	if (r == 0 && ftruncate(blocks->fd, (off_t)at) < 0)
		r = -errno;
	if (r == 0)
		r = io_pwrite_full(blocks->fd, blocks->digests, table, (off_t)at);
	if (r == 0)
		r = io_pwrite_full(blocks->fd, &tail, sizeof(tail), (off_t)(at + table));
	if (r == 0 && durable && fsync(blocks->fd) < 0)
		r = -errno;
	*bytes += at + table + sizeof(tail);
	return r < 0 ? err_code(err, r, "write %s", blocks->path) : 0;
}

void blocks_keep(struct blocks *blocks)
{
	blocks->kept = blocks->sources[own_source(blocks)].listed != 0;
}

void blocks_close(struct blocks *blocks)
{
	if (!blocks)
		return;
	if (blocks->fd >= 0 && !blocks->kept)
		unlink(blocks->path);
	if (blocks->fd >= 0)
		close(blocks->fd);
	for (uint32_t i = 0; i < blocks->nsources; i++) {
		blocks_pack_close(&blocks->sources[i].pack);
		free(blocks->sources[i].name);
	}
	for (size_t i = 0; i < blocks->nfiles; i++)
		free(blocks->files[i].v);
	free(blocks->sources);
	free(blocks->files);
	free(blocks->digests);
	free(blocks);
}
