/*
 * Pages from the image into the husk's memory.
 *
 * The husk reads them itself, straight from the page cache into its memory. Half of a large amount is written
 * from here at the same time, by a thread of ours with process_vm_writev() out of a mapping of the image:
 * that needs no second thread in the husk, and page faults of both sides take the lock of the mapping, not of
 * the whole address space, so on two processors it takes about half the time.
 */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "scip/restore/fill.h"

enum { CHUNK = 4 << 20, PARALLEL_FROM = 24 << 20 };

struct run {
	uint64_t address, offset, bytes;
};

struct runs {
	struct run *v;
	size_t n, room;
	uint64_t bytes;
};

/* What our own thread writes. */
struct writer {
	pid_t pid;
	int image_fd;
	const struct run *v;
	size_t n;
	int result;
};

static int add_run(struct runs *runs, uint64_t address, uint64_t offset, uint64_t bytes)
{
	struct run *last = runs->n ? &runs->v[runs->n - 1] : NULL;

	runs->bytes += bytes;
	if (last && last->address + last->bytes == address && last->offset + last->bytes == offset &&
	    last->bytes + bytes <= CHUNK) {
		last->bytes += bytes;
		return 0;
	}
	if (runs->n == runs->room) {
		size_t room = runs->room ? runs->room * 2 : 256;
		struct run *more = realloc(runs->v, room * sizeof(*more));

		if (!more)
			return -ENOMEM;
		runs->v = more;
		runs->room = room;
	}
	runs->v[runs->n++] = (struct run){address, offset, bytes};
	return 0;
}

/* Everything that is to be read, in pieces of at most CHUNK. */
static int collect(struct fill *fill, struct runs *runs)
{
	const Pbeam__Memory *memory = fill->saved->memory;

	for (size_t i = 0; i < memory->n_mappings; i++) {
		const Pbeam__Mapping *map = memory->mappings[i];

		if (map->kind == PBEAM__MAPPING__KIND__VDSO || map->kind == PBEAM__MAPPING__KIND__VVAR ||
		    map->kind == PBEAM__MAPPING__KIND__VSYSCALL)
			continue;
		for (size_t p = 0; p < map->n_pages; p++) {
			const Pbeam__Pages *pages = map->pages[p];
			uint64_t bytes = pages->count * IMAGE_PAGE, done = 0;

			if (pages->address < map->start ||
			    pages->count > (map->end - map->start) / IMAGE_PAGE ||
			    pages->address + bytes > map->end)
				return err_set(fill->err, -EINVAL, "pages at %#lx are not in their mapping",
					       (unsigned long)pages->address);
			while (done < bytes) {
				uint64_t now = bytes - done < CHUNK ? bytes - done : CHUNK;

				if (add_run(runs, pages->address + done, pages->offset + done, now) < 0)
					return err_code(fill->err, -ENOMEM, "list of pages");
				done += now;
			}
		}
	}
	return 0;
}

static int write_run(const struct writer *writer, const struct run *run)
{
	uint8_t *from = mmap(NULL, run->bytes, PROT_READ, MAP_SHARED | MAP_POPULATE, writer->image_fd,
			     (off_t)run->offset);
	uint64_t done = 0;
	int r = 0;

	if (from == MAP_FAILED)
		return -errno;
	while (done < run->bytes) {
		struct iovec local = {from + done, run->bytes - done};
		struct iovec remote = {(void *)(uintptr_t)(run->address + done), run->bytes - done};
		ssize_t n = process_vm_writev(writer->pid, &local, 1, &remote, 1, 0);

		if (n <= 0) {
			r = n < 0 ? -errno : -EFAULT;
			break;
		}
		done += (uint64_t)n;
	}
	munmap(from, run->bytes);
	return r;
}

static void *write_runs(void *arg)
{
	struct writer *writer = arg;
	cpu_set_t all;

	/* A scip stays on its tracee's processor, which is going to be busy. */
	memset(&all, 0xff, sizeof(all));
	sched_setaffinity(0, sizeof(all), &all);
	for (size_t i = 0; i < writer->n && writer->result == 0; i++)
		writer->result = write_run(writer, &writer->v[i]);
	return NULL;
}

static int read_runs(struct fill *fill, const struct run *runs, size_t n)
{
	int r = 0;

	for (size_t i = 0; i < n && r >= 0; i++)
		r = fill_call(fill, INJECT_CALL_FULL, SYS_pread64,
			      remote_args(FILL_FD_IMAGE, runs[i].address, runs[i].bytes, runs[i].offset));
	return r < 0 ? r : fill_flush(fill);
}

static int read_in_parallel(struct fill *fill, const struct runs *runs)
{
	struct writer writer = {.pid = fill->process->pid, .image_fd = fill->image_fd};
	uint64_t own = 0;
	pthread_t thread;
	size_t split = 0;
	int r;

	while (split < runs->n && own < runs->bytes * 52 / 100)
		own += runs->v[split++].bytes;
	writer.v = runs->v + split;
	writer.n = runs->n - split;
	r = pthread_create(&thread, NULL, write_runs, &writer);
	if (r != 0)
		return read_runs(fill, runs->v, runs->n);
	r = read_runs(fill, runs->v, split);
	pthread_join(thread, NULL);
	if (r == 0 && writer.result < 0)
		r = err_code(fill->err, writer.result, "write pages from outside");
	return r;
}

int contents_fill(struct fill *fill)
{
	struct runs runs = {0};
	int r = collect(fill, &runs);

	if (r == 0)
		r = fill_flush(fill);
	if (r == 0)
		r = runs.bytes >= PARALLEL_FROM ? read_in_parallel(fill, &runs)
						: read_runs(fill, runs.v, runs.n);
	free(runs.v);
	return r;
}
