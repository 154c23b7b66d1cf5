/*
 * Memory files (memfd_create). Contents belong to SharedMemory, as processes may map them too: the entry is
 * found by device and inode, or added. All descriptions of one are opened from one file, which mappings are
 * made from as well (object_restore_shared). Seals come last: they would forbid filling it.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "scip/object/common.h"
#include "scip/object/object_dump.h"
#include "scip/object/object_restore.h"
#include "scip/object/object_table.h"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif
#ifndef F_SEAL_EXEC
#define F_SEAL_EXEC 0x0020
#endif

static const char prefix[] = "/memfd:";

static bool memfd_match(struct object_dump *dump, const struct object_source *source)
{
	return S_ISREG(source->st.st_mode) && source->st.st_nlink == 0 &&
	       strncmp(source->link, prefix, sizeof(prefix) - 1) == 0 &&
	       (source->flags & O_PATH || fcntl(source->local, F_GET_SEALS) >= 0);
}

static Pbeam__SharedMemory *find_shared(Pbeam__Manifest *manifest, const struct stat *st, uint32_t *next)
{
	*next = 1;
	for (size_t i = 0; i < manifest->n_shared; i++) {
		Pbeam__SharedMemory *shared = manifest->shared[i];

		if (shared->dev == st->st_dev && shared->ino == st->st_ino &&
		    shared->kind != PBEAM__SHARED_MEMORY__KIND__SYSV) /* its inode number is its id */
			return shared;
		if (shared->id >= *next)
			*next = shared->id + 1;
	}
	return NULL;
}

static int shared_entry(Pbeam__Manifest *manifest, const struct object_source *source, const char *name,
			Pbeam__SharedMemory **out, struct err *err)
{
	uint32_t next;
	Pbeam__SharedMemory *shared = find_shared(manifest, &source->st, &next);

	*out = shared;
	if (shared)
		return 0;
	*out = shared = object_message(Pbeam__SharedMemory, pbeam__shared_memory__init);
	if (!shared || object_append(manifest->shared, manifest->n_shared, shared) < 0) {
		free(shared);
		return object_no_memory(err);
	}
	shared->id = next;
	shared->dev = source->st.st_dev;
	shared->ino = source->st.st_ino;
	shared->kind = PBEAM__SHARED_MEMORY__KIND__MEMFD;
	return object_set_bytes(&shared->name, name, strlen(name), err);
}

static int memfd_dump(struct object_dump *dump, const struct object_source *source, Pbeam__Object *out,
		      struct err *err)
{
	Pbeam__MemFd *memfd = object_message(Pbeam__MemFd, pbeam__mem_fd__init);
	Pbeam__SharedMemory *shared = NULL;
	auto_free char *name = strdup(source->link + sizeof(prefix) - 1);
	auto_close int reader = -1;
	struct statfs fs;
	int r;

	out->memfd = memfd;
	if (!memfd || !name)
		return object_no_memory(err);
	object_cut_deleted(name);
	if (fstatfs(source->local, &fs) < 0 || fs.f_type == HUGETLBFS_MAGIC)
		return err_set(err, -ENOTSUP,
			       "the memory file %s on huge pages, which cannot be saved; make it without "
			       "MFD_HUGETLB",
			       name);
	r = object_set_bytes(&memfd->name, name, strlen(name), err);
	if (r == 0)
		r = shared_entry(object_dump_manifest(dump), source, name, &shared, err);
	if (r < 0)
		return r;
	memfd->shared_id = shared->id;
	memfd->offset = (uint64_t)lseek(source->local, 0, SEEK_CUR);
	memfd->seals = (uint32_t)fcntl(source->local, F_GET_SEALS);
	shared->seals = memfd->seals;
	if (shared->precopied && shared->size < (uint64_t)source->st.st_size)
		return err_set(err, -EBUSY, "the memory file %s on its way between processes", name);
	shared->size = (uint64_t)source->st.st_size;
	if (shared->n_pages || shared->precopied)
		return 0;
	reader = object_reopen(source->local, O_RDONLY);
	if (reader < 0)
		return err_code(err, reader, "the memory file %s, which cannot be read", name);
	return object_files_write_pages(object_dump_image(dump), reader, shared->size, &shared->n_pages,
					&shared->pages, err);
}

static const Pbeam__SharedMemory *shared_of(struct object_restore *restore, uint32_t id)
{
	const Pbeam__Manifest *manifest = object_restore_manifest(restore);

	for (size_t i = 0; i < manifest->n_shared; i++)
		if (manifest->shared[i]->id == id)
			return manifest->shared[i];
	return NULL;
}

static int memfd_check(struct object_restore *restore, const Pbeam__Object *object, struct err *err)
{
	return shared_of(restore, object->memfd->shared_id)
		       ? 0
		       : err_set(err, -EBADMSG,
				 "the image refers to shared memory %u, which it does not have",
				 object->memfd->shared_id);
}

/* The one file behind all descriptions and mappings; kept by `restore`. */
static int base_file(struct object_restore *restore, uint32_t id, struct err *err)
{
	const Pbeam__SharedMemory *shared = shared_of(restore, id);
	int fd = object_restore_kept(restore, PBEAM__OBJECT__KIND_MEMFD, id), r;
	auto_free char *name = NULL;

	if (fd >= 0)
		return fd;
	name = shared ? object_text(&shared->name) : NULL;
	if (!name)
		return object_no_memory(err);
	fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING |
					(shared->seals & F_SEAL_EXEC ? MFD_NOEXEC_SEAL : 0));
	if (fd < 0)
		return err_sys(err, "make memory file %s", name);
	r = object_files_read_pages(object_restore_image(restore), fd, shared->size, shared->n_pages,
				    shared->pages, err);
	if (r < 0) {
		close(fd);
		return r;
	}
	r = object_restore_keep(restore, PBEAM__OBJECT__KIND_MEMFD, id, fd, err);
	return r < 0 ? r : fd;
}

static int memfd_restore(struct object_restore *restore, const Pbeam__Object *object, int *fd,
			 struct err *err)
{
	int base = base_file(restore, object->memfd->shared_id, err);

	if (base < 0)
		return base;
	*fd = object_reopen(base, (int)(object->flags & (O_ACCMODE | O_APPEND | O_PATH)));
	if (*fd < 0)
		return err_code(err, *fd, "open a memory file again");
	if (object->memfd->offset && lseek(*fd, (off_t)object->memfd->offset, SEEK_SET) < 0)
		return err_sys(err, "put back a memory file's offset");
	return 0;
}

static int memfd_finish(struct object_restore *restore, const Pbeam__Object *object, int fd, struct err *err)
{
	int base = base_file(restore, object->memfd->shared_id, err);
	int seals;

	if (base < 0)
		return base;
	seals = fcntl(base, F_GET_SEALS);
	if (seals != (int)object->memfd->seals && fcntl(base, F_ADD_SEALS, object->memfd->seals) < 0)
		return err_sys(err, "seal a memory file");
	return 0;
}

int object_restore_shared(struct object_restore *restore, uint32_t shared_id, struct err *err)
{
	const Pbeam__SharedMemory *shared = shared_of(restore, shared_id);

	if (!shared)
		return err_set(err, -EBADMSG, "the image has no shared memory %u", shared_id);
	if (shared->precopied)
		return object_restore_kept(restore, PBEAM__OBJECT__KIND_MEMFD, shared_id);
	for (size_t i = 0; i < restore->nslots; i++) {
		const Pbeam__Object *object = restore->slots[i].object;
		int fd;

		if (object->kind_case == PBEAM__OBJECT__KIND_MEMFD && object->memfd->shared_id == shared_id)
			return base_file(restore, shared_id, err);
		if (object->kind_case != PBEAM__OBJECT__KIND_REGULAR || !object->regular->unlinked ||
		    !object->regular->file || object->regular->file->ino != shared->ino ||
		    object->regular->file->dev != shared->dev)
			continue;
		fd = object_restore_get(restore, object->id, err);
		return fd < 0 ? fd
			      : object_restore_kept(restore, PBEAM__OBJECT__KIND_REGULAR,
						    object->regular->saved);
	}
	return err_set(err, -ENOENT, "no descriptor refers to shared memory %u", shared_id);
}

static void memfd_shift(Pbeam__Object *object, const struct object_shift *shift)
{
	object->memfd->shared_id += shift->shared;
}

const struct object_ops object_memfd = {
	.name = "memory file",
	.kind = PBEAM__OBJECT__KIND_MEMFD,
	.phase = 1,
	.match = memfd_match,
	.dump = memfd_dump,
	.check = memfd_check,
	.restore = memfd_restore,
	.finish = memfd_finish,
	.shift = memfd_shift,
};
