/*
 * Shared memory that is pre-copied: it is written into the memory file that the processes will map; a System
 * V segment is made from that file at the end (rebuild_shared.c).
 *
 * The skeleton lists the shared memory. The final manifest lists the pages of each that still exists; all of
 * them must have arrived, and nothing else stays in the file.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/io.h"
#include "scip/rebuild/precopied_parts.h"

#ifndef F_SEAL_EXEC
#define F_SEAL_EXEC 0x20
#endif

enum { SHARED_MAX = 4096, MODE_NOT_EXECUTABLE = 0666 };
#define OFFSET_MAX (1ull << 46)

int precopied_shared_make(struct precopied *p)
{
	const Pbeam__Manifest *manifest = p->rebuild.manifest;
	int r = 0;

	if (manifest->n_shared > SHARED_MAX)
		return err_set(p->rebuild.err, -EPROTO, "too many shared memory objects");
	p->shared = calloc(manifest->n_shared + 1, sizeof(*p->shared));
	if (!p->shared)
		return err_code(p->rebuild.err, -ENOMEM, "shared memory");
	while (p->nshared < manifest->n_shared && r == 0) {
		r = rebuild_shared_memory_file(manifest->shared[p->nshared]);
		p->shared[p->nshared] =
			(struct precopied_shared){.id = manifest->shared[p->nshared]->id, .fd = r};
		p->nshared++;
		r = r < 0 ? r : 0;
	}
	return r < 0 ? err_code(p->rebuild.err, r, "make shared memory") : 0;
}

void precopied_shared_release(struct precopied *p)
{
	for (size_t i = 0; i < p->nshared; i++)
		if (p->shared[i].fd >= 0)
			close(p->shared[i].fd);
	free(p->shared);
}

/* The file that the pieces belong to, or -EPROTO. */
static int file_of(const struct precopied *p, size_t index, const struct precopied_piece *pieces, size_t n,
		   struct err *err)
{
	bool good = index < p->nshared && n <= PRECOPIED_PIECES;

	for (size_t i = 0; i < n && good; i++)
		good = pieces[i].address % IMAGE_PAGE == 0 && pieces[i].len % IMAGE_PAGE == 0 &&
		       pieces[i].address < OFFSET_MAX && pieces[i].len < OFFSET_MAX;
	return good ? p->shared[index].fd : err_set(err, -EPROTO, "pages of unknown shared memory");
}

int precopied_shared_write(const struct precopied *p, size_t index, const struct precopied_piece *pieces,
			   size_t n, struct err *err)
{
	int fd = file_of(p, index, pieces, n, err), r = fd < 0 ? fd : 0;

	for (size_t i = 0; i < n && r == 0; i++) {
		r = io_pwrite_full(fd, pieces[i].data, pieces[i].len, (off_t)pieces[i].address);
		if (r < 0)
			err_code(err, r, "write shared memory %u", p->shared[index].id);
	}
	return r;
}

int precopied_shared_read(const struct precopied *p, size_t index, const struct precopied_piece *pieces,
			  size_t n, uint8_t *to, struct err *err)
{
	int fd = file_of(p, index, pieces, n, err);

	for (size_t i = 0; i < n && fd >= 0; i++) {
		if (io_pread_full(fd, to, pieces[i].len, (off_t)pieces[i].address) != (ssize_t)pieces[i].len)
			return err_set(err, -EPROTO, "changes of shared pages that were never sent");
		to += pieces[i].len;
	}
	return fd < 0 ? fd : 0;
}

/* ---- the end ---- */

/* Empties [start, end). */
static int punch_hole(int fd, uint64_t start, uint64_t end)
{
	return start < end && fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)start,
					(off_t)(end - start)) < 0
		       ? -errno
		       : 0;
}

static bool has_come(int fd, uint64_t start, uint64_t end)
{
	const off_t hole = lseek(fd, (off_t)start, SEEK_HOLE);

	return hole >= 0 && (uint64_t)hole >= end;
}

/* Reduces the file to the pages of the manifest, which are in the order of offsets. */
static int settle_file(struct rebuild *rebuild, const Pbeam__SharedMemory *saved, int fd)
{
	const uint64_t room = (saved->size + IMAGE_PAGE - 1) & ~(uint64_t)(IMAGE_PAGE - 1);
	uint64_t at = 0;
	int r = 0;

	if (saved->size > OFFSET_MAX)
		return err_set(rebuild->err, -EPROTO, "shared memory %u is too large", saved->id);
	if (ftruncate(fd, (off_t)room) < 0)
		return err_sys(rebuild->err, "size of shared memory %u", saved->id);
	for (size_t i = 0; i < saved->n_sent && r == 0; i++) {
		const uint64_t start = saved->sent[i]->address, count = saved->sent[i]->count;

		if (start % IMAGE_PAGE || start < at || start > room || count > (room - start) / IMAGE_PAGE ||
		    !has_come(fd, start, start + count * IMAGE_PAGE))
			return err_set(rebuild->err, -EPROTO, "shared memory %u at %#lx was never sent",
				       saved->id, (unsigned long)start);
		r = punch_hole(fd, at, start);
		at = start + count * IMAGE_PAGE;
	}
	if (r == 0)
		r = punch_hole(fd, at, room);
	if (r == 0 && saved->kind != PBEAM__SHARED_MEMORY__KIND__SYSV &&
	    ftruncate(fd, (off_t)saved->size) < 0)
		r = -errno;
	/* As MFD_NOEXEC_SEAL does. */
	if (r == 0 && saved->seals & F_SEAL_EXEC && fchmod(fd, MODE_NOT_EXECUTABLE) < 0)
		r = -errno;
	return r < 0 ? err_code(rebuild->err, r, "shared memory %u", saved->id) : 0;
}

static int give_file(struct rebuild *rebuild, const Pbeam__SharedMemory *saved)
{
	struct precopied *p = rebuild->precopied;
	const int index = p ? precopied_find(p, 0, saved->precopied) : -1;
	struct precopied_shared *shared = index < 0 ? NULL : &p->shared[(size_t)index - p->n];
	const int fd = shared ? shared->fd : -1;
	int r;

	if (fd < 0 || saved->n_pages || saved->huge)
		return err_set(rebuild->err, -EPROTO, "shared memory %u was never sent", saved->id);
	r = settle_file(rebuild, saved, fd);
	if (r < 0)
		return r;
	shared->fd = -1;
	return object_restore_keep(rebuild->objects, PBEAM__OBJECT__KIND_MEMFD, saved->id, fd, rebuild->err);
}

int precopied_shared_give(struct rebuild *rebuild)
{
	const Pbeam__Manifest *manifest = rebuild->manifest;
	int r = 0;

	for (size_t i = 0; i < manifest->n_shared && r == 0; i++)
		if (manifest->shared[i]->precopied)
			r = give_file(rebuild, manifest->shared[i]);
	return r;
}
