/*
 * Memory shared by several processes, or by descriptors and mappings. It is made in the coordinator; the
 * processes map it through the coordinator's descriptors.
 *
 * Anonymous shared mappings become memory files: an ordinary user cannot open another process's anonymous
 * mapping, and a mapping of a memory file behaves the same. Where an object of the image is the same file (an
 * open memfd, an unlinked file), that object's descriptor is used.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/io.h"
#include "proto/message.h"
#include "scip/rebuild/rebuild_parts.h"

#ifndef F_SEAL_EXEC
#define F_SEAL_EXEC 0x20
#endif

enum { NAME_MAX_MEMFD = 240, MODE_BITS = 0777, MOVE = 1 << 20 };

/* Fills a segment from the memory file that it was pre-copied into, and empties the file: there is not room
 * for both. */
static int move_ahead(struct rebuild *rebuild, const Pbeam__SharedMemory *saved, uint8_t *to)
{
	const int fd = object_restore_kept(rebuild->objects, PBEAM__OBJECT__KIND_MEMFD, saved->id);

	for (size_t i = 0; i < saved->n_sent; i++) {
		const uint64_t end = saved->sent[i]->address + saved->sent[i]->count * IMAGE_PAGE;

		for (uint64_t at = saved->sent[i]->address, n; at < end; at += n) {
			n = end - at < MOVE ? end - at : MOVE;
			if (io_pread_full(fd, to + at, n, (off_t)at) != (ssize_t)n ||
			    fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)at, (off_t)n) <
				    0)
				return err_set(rebuild->err, -EIO, "read shared memory %u", saved->id);
		}
	}
	return 0;
}

static int read_pages(struct rebuild *rebuild, const Pbeam__SharedMemory *saved, uint8_t *to, uint64_t size)
{
	if (saved->precopied)
		return move_ahead(rebuild, saved, to);
	for (size_t i = 0; i < saved->n_pages; i++) {
		const Pbeam__Pages *pages = saved->pages[i];
		uint64_t bytes = pages->count * IMAGE_PAGE, offset;
		ssize_t n;
		int fd;

		if (pages->address > size || pages->count > (size + IMAGE_PAGE - 1) / IMAGE_PAGE)
			return err_set(rebuild->err, -EINVAL, "pages beyond the end of shared memory %u",
				       saved->id);
		fd = image_reader_home(rebuild->image, pages, &offset, rebuild->err);
		if (fd < 0)
			return fd;
		n = io_pread_full(fd, to + pages->address, bytes, (off_t)offset);
		if (n != (ssize_t)bytes)
			return err_code(rebuild->err, n < 0 ? (int)n : -EIO, "read shared memory %u",
					saved->id);
	}
	return 0;
}

static int fill_file(struct rebuild *rebuild, const Pbeam__SharedMemory *saved, int fd)
{
	uint64_t room = (saved->size + IMAGE_PAGE - 1) & ~(uint64_t)(IMAGE_PAGE - 1);
	uint8_t *map;
	int r;

	if (ftruncate(fd, 0) < 0 || ftruncate(fd, (off_t)saved->size) < 0)
		return err_sys(rebuild->err, "size of shared memory %u", saved->id);
	if (saved->n_pages == 0)
		return 0;
	map = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (map == MAP_FAILED)
		return err_sys(rebuild->err, "map shared memory %u", saved->id);
	r = read_pages(rebuild, saved, map, saved->size);
	munmap(map, room);
	return r;
}

int rebuild_shared_memory_file(const Pbeam__SharedMemory *saved)
{
	char name[NAME_MAX_MEMFD + 1] = "";
	size_t len = saved->name.len < NAME_MAX_MEMFD ? saved->name.len : NAME_MAX_MEMFD;
	int fd;

	bytes_copy(name, saved->name.data, len);
	fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | (saved->huge ? MFD_HUGETLB : 0u));
	return fd < 0 ? -errno : fd;
}

static int make_memfd(struct rebuild *rebuild, struct shared_made *made)
{
	made->fd = rebuild_shared_memory_file(made->saved);
	if (made->fd < 0)
		return err_code(rebuild->err, made->fd, "make shared memory %u", made->saved->id);
	made->made = true;
	return fill_file(rebuild, made->saved, made->fd);
}

static int make_named(struct rebuild *rebuild, struct shared_made *made)
{
	const Pbeam__FileIdentity *file = made->saved->file;
	auto_free char *path = message_dup_text(&file->path);

	if (!path)
		return -ENOMEM;
	made->fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
	if (made->fd < 0 && errno == ENOENT) {
		made->fd = open(path, O_RDWR | O_CLOEXEC | O_CREAT | O_EXCL, file->mode & MODE_BITS);
		made->made = made->fd >= 0;
		if (made->fd >= 0 && fchmod(made->fd, file->mode & MODE_BITS) < 0)
			return err_sys(rebuild->err, "mode of %s", path);
	}
	if (made->fd < 0)
		return err_sys(rebuild->err, "open the shared file %s", path);
	return made->saved->precopied ? fill_file(rebuild, made->saved, made->fd) : 0;
}

bool rebuild_shared_may_wait(const Pbeam__Manifest *manifest)
{
	for (size_t i = 0; i < manifest->n_shared; i++) {
		const Pbeam__SharedMemory *saved = manifest->shared[i];
		auto_free char *path = NULL;

		if (saved->kind == PBEAM__SHARED_MEMORY__KIND__SYSV)
			return false;
		if (saved->kind != PBEAM__SHARED_MEMORY__KIND__POSIX_FILE || !saved->file ||
		    saved->file->deleted)
			continue;
		path = message_dup_text(&saved->file->path);
		if (!path || access(path, W_OK) < 0)
			return false;
	}
	return !manifest->n_sysv_sets && !manifest->n_sysv_queues;
}

int rebuild_shared_fill_sysv(struct rebuild *rebuild, const struct shared_made *made)
{
	const Pbeam__SharedMemory *saved = made->saved;
	void *at = shmat(made->sysv_id, NULL, 0);
	int r;

	if (at == (void *)-1)
		return err_sys(rebuild->err, "attach the shared memory segment with key %#x",
			       (unsigned)saved->sysv_key);
	if (!made->made && !saved->precopied)
		memset(at, 0, saved->size); /* what the image has no page of was zero */
	r = read_pages(rebuild, saved, at, saved->size);
	shmdt(at);
	return r;
}

/* Reuses a segment that outlived its processes, so that its id stays the same; else makes a new one. */
static int make_sysv(struct rebuild *rebuild, struct shared_made *made)
{
	const Pbeam__SharedMemory *saved = made->saved;
	int old = names_ipc_real(rebuild->names, NAMES_IPC_SHM, saved->sysv_id);
	struct shmid_ds ds;
	int r;

	made->sysv_id = -1;
	if (!saved->sysv_removed && shmctl(old, IPC_STAT, &ds) == 0 && ds.shm_perm.__key == saved->sysv_key &&
	    ds.shm_segsz == saved->size)
		made->sysv_id = old;
	if (made->sysv_id < 0) {
		int key = saved->sysv_removed ? IPC_PRIVATE : saved->sysv_key;

		made->sysv_id =
			shmget(key, saved->size, IPC_CREAT | IPC_EXCL | (int)(saved->sysv_mode & MODE_BITS));
		if (made->sysv_id < 0)
			return err_sys(rebuild->err,
				       "make the shared memory segment with key %#x; remove the old one with "
				       "ipcrm, or use "
				       "--replace if the program has made it since the checkpoint",
				       (unsigned)saved->sysv_key);
		made->made = true;
	}
	if (rebuild->beside && !made->made)
		return 0; /* the old processes have it: rebuild_sysv_take_over() */
	r = rebuild->beside ? 0
			    : names_ipc_bind(rebuild->names, NAMES_IPC_SHM, saved->sysv_id, made->sysv_id,
					     rebuild->options->keeper);
	if (r < 0)
		return err_code(rebuild->err, r, "name the shared memory segment with key %#x",
				(unsigned)saved->sysv_key);
	return rebuild_shared_fill_sysv(rebuild, made);
}

static int make_one(struct rebuild *rebuild, struct shared_made *made)
{
	const Pbeam__SharedMemory *saved = made->saved;

	if (saved->kind == PBEAM__SHARED_MEMORY__KIND__SYSV)
		return make_sysv(rebuild, made);
	made->fd = object_restore_shared(rebuild->objects, saved->id, rebuild->err);
	made->borrowed = made->fd >= 0;
	if (made->borrowed || made->fd != -ENOENT)
		return made->borrowed ? 0 : made->fd;
	err_clear(rebuild->err);
	if (saved->kind == PBEAM__SHARED_MEMORY__KIND__POSIX_FILE && saved->file && !saved->file->deleted)
		return make_named(rebuild, made);
	return make_memfd(rebuild, made);
}

int rebuild_shared_make_all(struct rebuild *rebuild)
{
	const Pbeam__Manifest *manifest = rebuild->manifest;
	struct rebuild_shared *shared = &rebuild->shared;
	int r = 0;

	shared->v = calloc(manifest->n_shared + 1, sizeof(*shared->v));
	if (!shared->v)
		return err_code(rebuild->err, -ENOMEM, "shared memory");
	for (size_t i = 0; i < manifest->n_shared && r == 0; i++) {
		struct shared_made *made = &shared->v[shared->n++];

		*made = (struct shared_made){.saved = manifest->shared[i], .fd = -1, .sysv_id = -1};
		r = make_one(rebuild, made);
	}
	return r;
}

const struct shared_made *rebuild_shared_find(const struct rebuild_shared *shared, uint32_t id)
{
	for (size_t i = 0; i < shared->n; i++)
		if (shared->v[i].saved->id == id)
			return &shared->v[i];
	return NULL;
}

int rebuild_shared_finish(struct rebuild *rebuild)
{
	for (size_t i = 0; i < rebuild->shared.n; i++) {
		const struct shared_made *made = &rebuild->shared.v[i];
		uint32_t seals = made->saved->seals & ~(uint32_t)F_SEAL_EXEC;

		if (made->sysv_id >= 0 && made->saved->sysv_removed &&
		    shmctl(made->sysv_id, IPC_RMID, NULL) < 0)
			return err_sys(rebuild->err, "remove a shared memory segment");
		if (made->fd >= 0 && !made->borrowed && seals && fcntl(made->fd, F_ADD_SEALS, (int)seals) < 0)
			return err_sys(rebuild->err, "seal shared memory %u", made->saved->id);
	}
	return 0;
}

void rebuild_shared_free(struct rebuild_shared *shared)
{
	for (size_t i = 0; i < shared->n; i++)
		if (shared->v[i].fd >= 0 && !shared->v[i].borrowed)
			close(shared->v[i].fd);
	free(shared->v);
	*shared = (struct rebuild_shared){0};
}
