#include "scip/dump/page_writer.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/io.h"
#include "base/page.h"
#include "proto/message.h"
#include "scip/tracee/remote.h"

enum { VECS_MAX = 512, PIECES_MAX = 8192, BUFFER = 1 << 20 };

static const uint64_t CALL_BYTES = 8u << 20;   /* of one call */
static const uint64_t BATCH_BYTES = 64u << 20; /* of one batch; the digests proceed between batches */

struct piece {
	uint64_t address, bytes, offset;
};

struct page_writer {
	struct process *process;
	struct tracee *caller;
	int image_fd;
	int mem;       /* /proc/TID/mem */
	bool inside;   /* the process writes, else scip */
	int remote_fd; /* the image in the process, -1 while it is not open there */
	struct image_arena *arena;
	uint64_t bytes;
	uint8_t *buffer;
	struct piece *pieces; /* of the next batch: each contiguous in memory and in the file */
	size_t npieces;
	uint64_t pending;
};

/* Not process_vm_readv: it pins the pages, and pinning a page that is shared copy-on-write for reading makes
 * a copy of it in the process (gup_must_unshare(), Linux 5.19), which ends the sharing and costs the memory.
 */
static int read_memory(const struct page_writer *writer, uint64_t address, uint64_t bytes, uint8_t *to)
{
	ssize_t got = io_pread_full(writer->mem, to, bytes, (off_t)address);

	return got == (ssize_t)bytes ? 0 : got < 0 && got != -EIO ? (int)got : -EFAULT;
}

static int open_memory(pid_t tid, struct err *err)
{
	char path[64];
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/mem", tid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	return fd < 0 ? err_sys(err, "open %s", path) : fd;
}

/* RLIMIT_FSIZE would limit the image too, and leave a pending SIGXFSZ. */
static bool may_write(const struct process *process)
{
	struct rlimit limit;

	return prlimit(process->pid, RLIMIT_FSIZE, NULL, &limit) == 0 && limit.rlim_cur == RLIM_INFINITY;
}

int page_writer_open(struct page_writer **out, struct process *process, struct tracee *caller, int image_fd,
		     struct image_arena *arena, struct err *err)
{
	struct page_writer *writer = calloc(1, sizeof(*writer));
	int r;

	if (!writer)
		return -ENOMEM;
	writer->process = process;
	writer->caller = caller;
	writer->image_fd = image_fd;
	writer->remote_fd = writer->mem = -1;
	writer->arena = arena;
	writer->buffer = malloc(BUFFER);
	writer->pieces = calloc(PIECES_MAX, sizeof(*writer->pieces));
	r = writer->buffer && writer->pieces ? 0 : -ENOMEM;
	if (r == 0)
		r = writer->mem = open_memory(caller->tid, err);
	writer->inside = may_write(process);
	if (r < 0) {
		page_writer_close(writer);
		return r;
	}
	*out = writer;
	return 0;
}

void page_writer_close(struct page_writer *writer)
{
	int64_t ret;

	if (writer->remote_fd >= 0 &&
	    remote_call(writer->caller, &ret, NULL, SYS_close, remote_args((uint64_t)writer->remote_fd)) < 0)
		writer->remote_fd = -1; /* the process is gone, and its descriptors with it */
	if (writer->mem >= 0)
		close(writer->mem);
	free(writer->buffer);
	free(writer->pieces);
	free(writer);
}

uint64_t page_writer_bytes(const struct page_writer *writer)
{
	return writer->bytes;
}

static int write_image(struct page_writer *writer, const void *data, uint64_t bytes, uint64_t offset,
		       struct err *err)
{
	int r = io_pwrite_full(writer->image_fd, data, bytes, (off_t)offset);

	if (r < 0)
		return err_code(err, r, "write the image");
	image_arena_written(writer->arena, offset, bytes);
	writer->bytes += bytes;
	return 0;
}

/* Reads a piece from outside and writes it. */
static int write_outside(struct page_writer *writer, const struct piece *piece, struct err *err)
{
	for (uint64_t done = 0; done < piece->bytes;) {
		uint64_t n = piece->bytes - done < BUFFER ? piece->bytes - done : BUFFER;
		int r = read_memory(writer, piece->address + done, n, writer->buffer);

		if (r < 0)
			return err_code(err, r, "read memory at 0x%lx",
					(unsigned long)(piece->address + done));
		r = write_image(writer, writer->buffer, n, piece->offset + done, err);
		if (r < 0)
			return r;
		done += n;
	}
	return 0;
}

/* Counts the pieces from number `i` on that are contiguous in the file and fit into one call. */
static size_t group_of(const struct page_writer *writer, size_t i)
{
	uint64_t bytes = writer->pieces[i].bytes;
	size_t n = 1;

	while (i + n < writer->npieces && n < VECS_MAX) {
		const struct piece *last = &writer->pieces[i + n - 1], *next = &writer->pieces[i + n];

		if (last->offset + last->bytes != next->offset || bytes + next->bytes > CALL_BYTES)
			break;
		bytes += next->bytes;
		n++;
	}
	return n;
}

/* The calls of one batch that open the image in the process and close it; -1: the batch has no such call. */
struct image_calls {
	int open, close;
};

/* Adds a call that has the image's descriptor as its first argument. */
static int add_for_image(struct page_writer *writer, struct batch *batch, const struct image_calls *calls,
			 uint32_t flags, int64_t nr, const uint64_t args[4])
{
	const uint32_t from = calls->open >= 0 ? INJECT_CALL_FROM : 0;
	int r = batch_add(batch, flags | from, nr,
			  remote_args((uint64_t)writer->remote_fd, args[1], args[2], args[3]));

	if (r >= 0 && from)
		batch_call(batch, r)->from_call = (uint16_t)calls->open;
	return r;
}

static int add_open(struct page_writer *writer, struct batch *batch, struct image_calls *calls)
{
	struct taddr where;
	char path[64];
	int r;

	if (writer->remote_fd >= 0)
		return 0;
	snprintf(path, sizeof(path), "/proc/%d/fd/%d", getpid(), writer->image_fd);
	r = batch_data(batch, path, strlen(path) + 1, &where);
	if (r >= 0)
		r = batch_add(batch, 0, SYS_openat,
			      remote_args((uint64_t)AT_FDCWD, where.a, O_WRONLY | O_CLOEXEC));
	if (r < 0)
		return r;
	calls->open = r;
	batch_call(batch, r)->ret = -1; /* not made yet */
	return 0;
}

/* Whatever the batch has come to: the image is open in the process, or is not. */
static void note_image(struct page_writer *writer, struct batch *batch, const struct image_calls *calls)
{
	if (calls->open >= 0)
		writer->remote_fd = (int)batch_call(batch, calls->open)->ret;
	if (calls->open >= 0 && writer->remote_fd < 0) {
		writer->inside = false; /* it has no free descriptor, for example */
		writer->remote_fd = -1;
	}
	if (calls->close >= 0 && batch_call(batch, calls->close)->ret == 0)
		writer->remote_fd = -1;
}

/* Adds the call for `n` pieces. -ENOSPC when the area is full. */
static int add_call(struct page_writer *writer, struct batch *batch, const struct image_calls *calls,
		    const struct piece *pieces, size_t n)
{
	struct iovec vecs[VECS_MAX];
	uint64_t bytes = 0;
	struct taddr where;
	int r;

	if (n == 1)
		return add_for_image(writer, batch, calls, INJECT_CALL_FULL, SYS_pwrite64,
				     remote_args(0, pieces[0].address, pieces[0].bytes, pieces[0].offset));
	for (size_t i = 0; i < n; i++) {
		vecs[i] = (struct iovec){(void *)pieces[i].address, pieces[i].bytes};
		bytes += pieces[i].bytes;
	}
	r = batch_data(batch, vecs, n * sizeof(vecs[0]), &where);
	if (r < 0)
		return r;
	r = add_for_image(writer, batch, calls, INJECT_CALL_EXACT, SYS_pwritev,
			  remote_args(0, where.a, n, pieces[0].offset));
	if (r >= 0)
		batch_call(batch, r)->expect = (int64_t)bytes;
	return r;
}

/* Adds the calls for pieces from number `from` on. Returns the number of the first one that has no room. The
 * last of all pieces is followed by the close, if nothing more is expected. */
static size_t fill_batch(struct page_writer *writer, struct batch *batch, struct image_calls *calls,
			 size_t from, bool last)
{
	size_t to = from;

	if (add_open(writer, batch, calls) < 0)
		return from;
	while (to < writer->npieces) {
		size_t n = group_of(writer, to);

		if (add_call(writer, batch, calls, &writer->pieces[to], n) < 0)
			return to;
		to += n;
	}
	if (last)
		calls->close =
			add_for_image(writer, batch, calls, INJECT_CALL_ANY, SYS_close, remote_args(0));
	if (calls->close >= 0)
		batch_call(batch, calls->close)->ret = -1; /* not made yet */
	return to;
}

/* Runs one batch for pieces from number `from` on. Returns how many pieces it has written. */
static int run_batch(struct page_writer *writer, size_t from, bool last, struct err *err)
{
	struct image_calls calls = {-1, -1};
	struct err inner = ERR_INIT;
	struct batch *batch;
	size_t to;
	int r = batch_begin(writer->process, &batch, err);

	if (r < 0)
		return r;
	to = fill_batch(writer, batch, &calls, from, last);
	r = batch_run(batch, writer->caller, &inner);
	if (r == -ESRCH) {
		batch_end(batch);
		return err_set(err, r, "%s", inner.text);
	}
	note_image(writer, batch, &calls);
	batch_end(batch);
	for (size_t i = from; i < to && r >= 0; i++) {
		image_arena_written(writer->arena, writer->pieces[i].offset, writer->pieces[i].bytes);
		writer->bytes += writer->pieces[i].bytes;
	}
	if (r >= 0)
		return (int)(to - from);
	/* Repeated from outside, which works or yields the reason. */
	for (size_t i = from; i < to; i++) {
		r = write_outside(writer, &writer->pieces[i], err);
		if (r < 0)
			return r;
	}
	return (int)(to - from);
}

static int write_pieces(struct page_writer *writer, bool last, struct err *err)
{
	size_t done = 0;

	while (done < writer->npieces) {
		int n = run_batch(writer, done, last, err);

		if (n < 0)
			return n;
		done += (size_t)n;
	}
	writer->npieces = 0;
	writer->pending = 0;
	return 0;
}

int page_writer_flush(struct page_writer *writer, struct err *err)
{
	return write_pieces(writer, true, err);
}

int page_writer_add(struct page_writer *writer, uint64_t address, uint64_t count, uint64_t offset,
		    bool unreadable, struct err *err)
{
	struct piece whole = {address, count * PAGE, offset};

	if (unreadable || !writer->inside)
		return write_outside(writer, &whole, err);
	while (whole.bytes) {
		uint64_t n = whole.bytes < CALL_BYTES ? whole.bytes : CALL_BYTES;

		writer->pieces[writer->npieces++] = (struct piece){whole.address, n, whole.offset};
		writer->pending += n;
		whole.address += n;
		whole.offset += n;
		whole.bytes -= n;
		if (writer->npieces == PIECES_MAX || writer->pending >= BATCH_BYTES) {
			int r = write_pieces(writer, false, err);

			if (r < 0)
				return r;
		}
	}
	return 0;
}

int pages_append(size_t *n, Pbeam__Pages ***pages, uint64_t address, uint64_t count, uint64_t offset)
{
	Pbeam__Pages *last = *n ? (*pages)[*n - 1] : NULL;

	if (last && last->address + last->count * PAGE == address && last->offset && offset &&
	    last->offset + last->count * PAGE == offset) {
		last->count += count;
		return 0;
	}
	last = message_append_new(pages, n, &pbeam__pages__descriptor);
	if (!last)
		return -ENOMEM;
	last->address = address;
	last->count = count;
	last->offset = offset;
	return 0;
}

/* Reads up to `n` pages into the buffer. Returns how many could be read. */
static uint64_t read_from_outside(struct page_writer *writer, uint64_t address, uint64_t n)
{
	uint64_t got = 0;

	if (read_memory(writer, address, n * PAGE, writer->buffer) == 0)
		return n;
	while (got < n && read_memory(writer, address + got * PAGE, PAGE, writer->buffer + got * PAGE) == 0)
		got++;
	return got;
}

/* Stores `n` pages of the buffer, which belong to `address`. New pages that are contiguous in the file are
 * written by one call. */
static int store_pages(struct page_writer *writer, uint64_t address, uint64_t n, bool all, size_t *n_pages,
		       Pbeam__Pages ***pages, struct err *err)
{
	uint64_t first = 0, count = 0, at = 0;

	for (uint64_t i = 0; i <= n; i++) {
		const uint8_t *page = writer->buffer + i * PAGE;
		bool fresh = false;
		uint64_t offset = 0;
		int r;

		if (i < n && !page_is_zero(page)) {
			if (all)
				offset = image_arena_take(writer->arena, PAGE);
			fresh = all || !image_arena_dedup(writer->arena, page, &offset);
			r = pages_append(n_pages, pages, address + i * PAGE, 1, offset);
			if (r < 0)
				return r;
		}
		if (fresh && count && first + count == i && at + count * PAGE == offset) {
			count++;
			continue;
		}
		if (count) {
			r = write_image(writer, writer->buffer + first * PAGE, count * PAGE, at, err);
			if (r < 0)
				return r;
		}
		first = i;
		at = offset;
		count = fresh ? 1 : 0;
	}
	return 0;
}

int page_writer_common(struct page_writer *writer, uint64_t address, uint64_t count, int64_t shift, bool all,
		       size_t *n_pages, Pbeam__Pages ***pages, struct err *err)
{
	while (count) {
		uint64_t n = count < BUFFER / PAGE ? count : BUFFER / PAGE;
		uint64_t got = read_from_outside(writer, address, n);
		int r;

		if (got < n && !all)
			return err_set(err, -EFAULT, "read memory at 0x%lx: it cannot be read",
				       (unsigned long)(address + got * PAGE));
		r = store_pages(writer, address + (uint64_t)shift, got, all, n_pages, pages, err);
		if (r < 0)
			return r;
		/* A page that cannot be read is left out. */
		got += got < n;
		address += got * PAGE;
		count -= got;
	}
	return 0;
}
