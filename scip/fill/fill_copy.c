/*
 * Writes a large number of pages into the husk from outside.
 *
 * Each thread takes the next piece, reads it into a buffer that stays in its processor's cache, verifies
 * the chunk's digest where that has not been done, and copies it. So the image is read from memory once,
 * and damage is found before anything runs. The husk stands still; its memory is reached through its
 * descriptors and its process number.
 *
 * New anonymous memory gets its pages by UFFDIO_COPY on a userfaultfd that an injected call makes in the
 * husk: the kernel maps a page that has its contents, where a page fault would clear it first. On two
 * processors 1 GiB takes 290 ms with digests, against 440 ms by process_vm_writev(). (MADV_COLLAPSE to huge
 * pages first is as fast where contiguous memory is at hand, and ten times slower where the host of a
 * virtual machine has taken it back.) Where the system gives huge pages by itself, page faults are left to
 * do so. The userfaultfd is UFFD_USER_MODE_ONLY, which needs no privilege (Linux 5.11). All other memory is
 * written by process_vm_writev().
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "base/log.h"
#include "scip/fill/fill_contents.h"

#ifndef UFFD_USER_MODE_ONLY
#define UFFD_USER_MODE_ONLY 1
#endif

enum { THREADS_MAX = 8, TEXT_MAX = 256 };

struct copy {
	pid_t pid;
	const int *images;
	int uffd; /* -1: none */
	uint64_t digests;
	const struct fill_pieces *pieces;
	atomic_size_t next;
	_Atomic int result;
	_Atomic uint64_t bad; /* offset of a damaged chunk */
};

/* ---- the userfaultfd ---- */

/* Makes a userfaultfd of the husk, and closes the husk's own descriptor of it. Returns -1 if the kernel
 * offers none, with -errno in *problem if the husk is broken. */
static int make_uffd(struct fill *fill, int *problem)
{
	struct uffdio_api api = {.api = UFFD_API};
	auto_close int pidfd = -1, fd = -1;
	int64_t there = -1;
	int call = fill_call(fill, INJECT_CALL_ANY, SYS_userfaultfd,
			     remote_args(O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY));

	*problem = call < 0 ? call : batch_run(fill->batch, fill->runner, fill->err);
	if (*problem < 0)
		return -1;
	there = batch_call(fill->batch, call)->ret;
	batch_end(fill->batch);
	fill->batch = NULL;
	if (there < 0)
		return -1;
	pidfd = (int)syscall(SYS_pidfd_open, fill->process->pid, 0);
	fd = pidfd < 0 ? -1 : (int)syscall(SYS_pidfd_getfd, pidfd, (int)there, 0);
	*problem = fill_do(fill, SYS_close, remote_args((uint64_t)there));
	if (*problem == 0)
		*problem = fill_flush(fill);
	if (*problem < 0 || fd < 0 || ioctl(fd, UFFDIO_API, &api) < 0)
		return -1;
	return steal_fd(&fd);
}

/* True if page faults in the mapping allocate huge pages. */
static bool gets_huge(const Pbeam__Memory *memory, const Pbeam__Mapping *map, bool always)
{
	return !memory->thp_disable && !(map->advice & PBEAM__MAPPING__ADVICE__NOHUGEPAGE) &&
	       (always || map->advice & PBEAM__MAPPING__ADVICE__HUGEPAGE);
}

static bool are_huge_pages_usual(void)
{
	auto_free char *text = NULL;

	return io_slurp(AT_FDCWD, "/sys/kernel/mm/transparent_hugepage/enabled", TEXT_MAX, &text, NULL) ==
		       0 &&
	       strstr(text, "[always]");
}

/* Registers the memory; memory that cannot be registered is written by process_vm_writev(). */
static void register_mappings(struct fill *fill, const struct copy *copy)
{
	const Pbeam__Memory *memory = fill->saved->memory;
	bool always = are_huge_pages_usual();

	for (size_t i = 0; i < memory->n_mappings; i++) {
		const Pbeam__Mapping *map = memory->mappings[i];
		struct uffdio_register range = {.range = {map->start, map->end - map->start},
						.mode = UFFDIO_REGISTER_MODE_MISSING};

		if (map->n_pages && fill_contents_is_fresh(fill, map) && !gets_huge(memory, map, always) &&
		    ioctl(copy->uffd, UFFDIO_REGISTER, &range) < 0)
			log_debug("memory at %#lx is filled by page faults: %s", (unsigned long)map->start,
				  strerror(errno));
	}
}

/* ---- one piece ---- */

static int write_bytes(const struct copy *copy, const uint8_t *from, uint64_t to, uint64_t bytes)
{
	uint64_t done = 0;

	while (done < bytes) {
		struct iovec local = {(void *)(uintptr_t)(from + done), bytes - done};
		struct iovec remote = {(void *)(uintptr_t)(to + done), bytes - done};
		ssize_t n = process_vm_writev(copy->pid, &local, 1, &remote, 1, 0);

		if (n <= 0)
			return n < 0 ? -errno : -EFAULT;
		done += (uint64_t)n;
	}
	return 0;
}

/* Writes page by page where some pages exist already, or where the memory is not registered. */
static int give_pages(const struct copy *copy, const uint8_t *from, uint64_t to, uint64_t bytes)
{
	uint64_t done = 0;

	while (done < bytes) {
		struct uffdio_copy pages = {.dst = to + done,
					    .src = (uint64_t)(uintptr_t)(from + done),
					    .len = bytes - done,
					    .mode = UFFDIO_COPY_MODE_DONTWAKE};
		int r = ioctl(copy->uffd, UFFDIO_COPY, &pages) < 0 ? -errno : 0;

		if (pages.copy > 0)
			done += (uint64_t)pages.copy;
		if (r == -EEXIST && done < bytes) {
			r = write_bytes(copy, from + done, to + done, IMAGE_PAGE);
			done += IMAGE_PAGE;
		} else if (r == -ENOENT || r == -EINVAL) {
			return write_bytes(copy, from + done, to + done, bytes - done);
		}
		if (r < 0 && r != -EAGAIN)
			return r;
	}
	return 0;
}

static int copy_piece(struct copy *copy, const struct fill_piece *piece, uint8_t *room)
{
	ssize_t n = io_pread_full(copy->images[piece->image], room, piece->bytes, (off_t)piece->offset);

	if (n < 0 || (uint64_t)n != piece->bytes)
		return n < 0 ? (int)n : -EIO;
	if (copy->digests && !piece->image && fill_contents_is_chunk(piece->offset, piece->bytes) &&
	    !image_check_chunk(copy->images[0], copy->digests, piece->offset / IMAGE_CHUNK, room)) {
		atomic_store(&copy->bad, piece->offset);
		return -EBADMSG;
	}
	return piece->fresh && copy->uffd >= 0 ? give_pages(copy, room, piece->address, piece->bytes)
					       : write_bytes(copy, room, piece->address, piece->bytes);
}

static void *copy_pieces(void *arg)
{
	struct copy *copy = arg;
	uint8_t *room = aligned_alloc(IMAGE_PAGE, IMAGE_CHUNK);
	cpu_set_t all;
	size_t i;
	int r = room ? 0 : -ENOMEM;

	/* The scip is bound to its tracee's processor. The tracee is idle now, so the threads use all
	 * processors. */
	memset(&all, 0xff, sizeof(all));
	sched_setaffinity(0, sizeof(all), &all);
	while (r == 0 && atomic_load(&copy->result) == 0 &&
	       (i = atomic_fetch_add(&copy->next, 1)) < copy->pieces->n)
		r = copy_piece(copy, &copy->pieces->v[i], room);
	if (r < 0)
		atomic_store(&copy->result, r);
	free(room);
	return NULL;
}

/* ---- all pieces ---- */

static int threads_wanted(const struct fill_pieces *pieces)
{
	long processors = sysconf(_SC_NPROCESSORS_ONLN);

	if (processors > THREADS_MAX)
		processors = THREADS_MAX;
	return (size_t)processors > pieces->n ? (int)pieces->n : (int)processors;
}

static void run_threads(struct copy *copy)
{
	pthread_t threads[THREADS_MAX];
	int want = threads_wanted(copy->pieces), have = 0;

	while (have < want && pthread_create(&threads[have], NULL, copy_pieces, copy) == 0)
		have++;
	if (!have)
		copy_pieces(copy);
	while (have)
		pthread_join(threads[--have], NULL);
}

int fill_copy(struct fill *fill, const struct fill_pieces *pieces)
{
	int r;
	auto_close int uffd = make_uffd(fill, &r);
	struct copy copy = {.pid = fill->process->pid,
			    .images = fill->images,
			    .uffd = uffd,
			    .digests = fill->request->digests_offset,
			    .pieces = pieces};
	uint64_t bad;

	if (r < 0)
		return r;
	if (uffd >= 0)
		register_mappings(fill, &copy);
	run_threads(&copy);
	r = atomic_load(&copy.result);
	bad = atomic_load(&copy.bad);
	if (r == -EBADMSG)
		return err_set(fill->err, r,
			       "the image is damaged: its data does not match its digest between %llu and "
			       "%llu; use another checkpoint",
			       (unsigned long long)bad, (unsigned long long)bad + IMAGE_CHUNK);
	return r < 0 ? err_code(fill->err, r, "write pages from outside") : 0;
}
