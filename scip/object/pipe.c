/*
 * Pipes and FIFOs: capacity, contents, packet boundaries, and which ends are still open.
 *
 * Contents are copied without being drained: tee(2) into a pipe of our own, which shares the buffers, and a
 * read of that. tee needs a read end; if the group holds only write ends (the reader is in a queue, or there
 * is none) we open one through /proc/self/fd, which the program cannot see. In packet mode (O_DIRECT) one
 * read gives one packet.
 *
 * A pipe whose other end is held outside the group would be cut by a restore. poll() distinguishes it from an
 * end that no process holds: a write end without readers shows POLLERR, a read end whose writers are gone
 * POLLHUP.
 *
 * On restore the pipe is made once, and both ends are kept until everything is finished, so that no process
 * sees an end of file early; every further description of an end is opened through /proc/self/fd. In a
 * rollback the FIFO of a path is the one that the processes to be replaced have open: it gets its contents
 * after the commit.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/io.h"
#include "scip/object/common.h"
#include "scip/object/object_end.h"
#include "scip/object/object_restore.h"
#include "scip/object/object_table.h"

#define PACKET_MAX 4096u

/* A pipe above fs.pipe-user-pages-soft has two pages (PIPE_MIN_DEF_BUFFERS). */
enum { SMALL_PAGES = 2, RESERVE_MAX = 2048 };

static bool pipe_match(struct object_dump *dump, const struct object_source *source)
{
	return S_ISFIFO(source->st.st_mode);
}

static bool flags_read(int flags)
{
	return (flags & O_ACCMODE) != O_WRONLY;
}

static bool flags_write(int flags)
{
	return (flags & O_ACCMODE) != O_RDONLY;
}

static bool is_fifo(const struct object_source *source)
{
	return source->link[0] == '/';
}

/* Reads the copy; one read a packet in packet mode. */
static int read_copy(int copy, size_t len, bool packet, Pbeam__Pipe *out, char **data, struct err *err)
{
	auto_free char *buf = malloc(len ? len : 1);
	size_t used = 0;

	if (!buf)
		return object_no_memory(err);
	while (used < len) {
		ssize_t n = read(copy, buf + used, len - used);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return err_sys(err, "a pipe whose contents cannot be read");
		if (n == 0)
			break;
		used += (size_t)n;
		if (packet && object_append(out->packets, out->n_packets, (uint32_t)n) < 0)
			return object_no_memory(err);
	}
	if (used != len)
		return err_set(err, -EIO, "a pipe of which only %zu of %zu bytes could be read", used, len);
	*data = steal_ptr(&buf);
	return 0;
}

static int dump_contents(struct object_dump *dump, const struct object_source *source, Pbeam__Pipe *pipe_out,
			 struct err *err)
{
	auto_close int reader = -1, copy_read = -1, copy_write = -1;
	auto_free char *data = NULL;
	int ends[2], queued = 0;
	ssize_t n;
	int r;

	pipe_out->has_contents = true;
	if (ioctl(source->local, FIONREAD, &queued) < 0)
		return err_sys(err, "a pipe whose contents cannot be read");
	if (queued == 0)
		return 0;
	reader = flags_read(source->flags) ? dup(source->local)
					   : object_reopen(source->local, O_RDONLY | O_NONBLOCK);
	if (reader < 0 && errno == EACCES)
		return err_set(err, -EACCES,
			       "a pipe of another user, whose contents cannot be read; the program has "
			       "inherited it, close it for it (`scip run ... %d>&-`)",
			       source->holder_fd);
	if (reader < 0)
		return err_sys(err, "a pipe whose contents cannot be read");
	if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) < 0)
		return err_sys(err, "a pipe; make a pipe for a copy of its contents");
	copy_read = ends[0];
	copy_write = ends[1];
	if (fcntl(copy_write, F_GETPIPE_SZ) < (int)pipe_out->capacity &&
	    fcntl(copy_write, F_SETPIPE_SZ, pipe_out->capacity) < 0)
		return err_sys(err, "a pipe of %u bytes; make room for a copy of its contents",
			       pipe_out->capacity);
	n = tee(reader, copy_write, (size_t)queued, SPLICE_F_NONBLOCK);
	if (n < 0)
		return err_sys(err, "a pipe whose contents cannot be copied");
	if (n != queued)
		return err_set(err, -EIO, "a pipe of which only %zd of %d bytes could be copied", n, queued);
	r = read_copy(copy_read, (size_t)queued, pipe_out->packet, pipe_out, &data, err);
	return r < 0 ? r : object_put_extent(dump, data, (size_t)queued, &pipe_out->contents, err);
}

/* Another description of the same pipe is responsible for the contents. */
static bool contents_saved(struct object_dump *dump, uint64_t ino)
{
	for (const struct object_source *other = object_dump_same_inode(dump, ino, NULL); other;
	     other = object_dump_same_inode(dump, ino, other)) {
		const Pbeam__Object *object = object_dump_object(other);

		if (object->kind_case == PBEAM__OBJECT__KIND_PIPE && object->pipe &&
		    object->pipe->has_contents)
			return true;
	}
	return false;
}

/* Packet mode is the flag of a write end: read ends show the boundaries whether they have it or not. */
static bool packet_mode(struct object_dump *dump, const struct object_source *source)
{
	const struct object_source *other;

	for (other = object_dump_same_inode(dump, source->st.st_ino, NULL); other;
	     other = object_dump_same_inode(dump, source->st.st_ino, other))
		if (other->st.st_dev == source->st.st_dev && other->flags & O_DIRECT)
			return true;
	return false;
}

static int pipe_dump(struct object_dump *dump, const struct object_source *source, Pbeam__Object *out,
		     struct err *err)
{
	Pbeam__Pipe *pipe_out = object_message(Pbeam__Pipe, pbeam__pipe__init);
	int capacity = fcntl(source->local, F_GETPIPE_SZ), r = 0;

	if (!pipe_out)
		return object_no_memory(err);
	out->pipe = pipe_out;
	if (capacity < 0)
		return err_sys(err, "a pipe whose capacity cannot be read");
	pipe_out->capacity = (uint32_t)capacity;
	pipe_out->read_end = flags_read(source->flags);
	pipe_out->write_end = flags_write(source->flags);
	pipe_out->packet = packet_mode(dump, source);
	if (is_fifo(source)) {
		auto_free char *path = strdup(source->link);

		if (!path)
			return object_no_memory(err);
		r = object_set_bytes(&pipe_out->fifo_path, path, strlen(path), err);
		if (r == 0)
			r = object_identity(&source->st, path, object_cut_deleted(path), &pipe_out->fifo,
					    err);
	}
	if (r == 0 && !contents_saved(dump, source->st.st_ino))
		r = dump_contents(dump, source, pipe_out, err);
	pipe_out->ino = source->st.st_ino;
	return r;
}

/* The other end must be in the group, or closed. */
static int pipe_verify(struct object_dump *dump, const struct object_source *source, Pbeam__Object *out,
		       struct err *err)
{
	struct pollfd poll_fd = {.fd = source->local, .events = POLLIN | POLLOUT};
	bool reader, writer;

	object_dump_pipe_ends(dump, source, &reader, &writer);
	if ((reader && writer) || object_dump_force(dump))
		return 0;
	if (poll(&poll_fd, 1, 0) < 0)
		return err_sys(err, "a pipe that cannot be polled");
	if (poll_fd.revents & (POLLERR | POLLHUP) || (is_fifo(source) && !writer))
		return 0;
	return err_set(err, -ENOTSUP,
		       "a pipe whose %s end is held by a process that is not saved with it; checkpoint the "
		       "whole tree, or let that process end first",
		       reader ? "write" : "read");
}

static int pipe_check(struct object_restore *restore, const Pbeam__Object *object, struct err *err)
{
	auto_free char *path = NULL;
	struct stat st;

	if (!object->pipe->read_end && !object->pipe->write_end)
		return err_set(err, -EBADMSG, "the image does not say which end of the pipe");
	if (!object->pipe->fifo)
		return 0;
	path = object_text(&object->pipe->fifo->path);
	if (!path)
		return object_no_memory(err);
	if (stat(path, &st) == 0 && !S_ISFIFO(st.st_mode) && !object->pipe->fifo->deleted)
		return err_set(err, -EEXIST, "%s is no FIFO any more; move it away, then try again", path);
	return 0;
}

/* The FIFO at its path, made if it is missing; without a name again if it had none. */
static int open_fifo(const Pbeam__Pipe *saved, struct err *err)
{
	auto_free char *path = object_text(&saved->fifo->path);
	bool made;
	int fd;

	if (!path)
		return object_no_memory(err);
	made = mkfifo(path, saved->fifo->mode & 07777) == 0;
	if (!made && (errno != EEXIST || saved->fifo->deleted))
		return err_sys(err, "make FIFO %s", path);
	fd = open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC);
	if (fd < 0)
		fd = err_sys(err, "open FIFO %s", path);
	if (saved->fifo->deleted)
		unlink(path);
	return fd;
}

static int pipe_fill(struct object_restore *restore, const Pbeam__Pipe *saved, int writer, struct err *err)
{
	auto_free char *data = NULL;
	size_t len, at = 0;
	int r = object_get_extent(restore, saved->contents, &data, &len, err);

	if (r < 0)
		return r;
	for (size_t i = 0; i < saved->n_packets && r == 0; i++) {
		if (saved->packets[i] > PACKET_MAX || saved->packets[i] > len - at)
			return err_set(err, -EBADMSG, "the image's packets of a pipe are malformed");
		r = io_write_full(writer, data + at, saved->packets[i]);
		at += saved->packets[i];
	}
	if (r == 0)
		r = io_write_full(writer, data + at, len - at);
	return r < 0 ? err_code(err, r, "refill the pipe") : 0;
}

static const Pbeam__Pipe *pipe_find_contents(struct object_restore *restore, uint64_t ino)
{
	const Pbeam__Object *object = NULL;

	while ((object = object_restore_same_inode(restore, ino, object)) != NULL)
		if (object->kind_case == PBEAM__OBJECT__KIND_PIPE && object->pipe->has_contents)
			return object->pipe;
	return NULL;
}

/* True if more descriptions are needed than the two that pipe2() makes, or another host has an end. */
static bool wants_base(struct object_restore *restore, const Pbeam__Pipe *saved)
{
	const Pbeam__Object *object = NULL;
	size_t readers = 0, writers = 0;

	while ((object = object_restore_same_inode(restore, saved->ino, object)) != NULL) {
		if (object->kind_case != PBEAM__OBJECT__KIND_PIPE)
			continue;
		if (object->external || object->pipe->read_end == object->pipe->write_end)
			return true;
		readers += object->pipe->read_end;
		writers += object->pipe->write_end;
	}
	return saved->fifo || readers > 1 || writers > 1;
}

/* The ends that pipe2() made go to the first description of each kind: those opened again through /proc show
 * O_LARGEFILE, which the program would see in F_GETFL. */
static void give_ends(struct object_restore *restore, uint64_t ino, int reader, int writer)
{
	const Pbeam__Object *object = NULL;
	bool read_given = false, write_given = false;

	while ((object = object_restore_same_inode(restore, ino, object)) != NULL) {
		if (object->kind_case != PBEAM__OBJECT__KIND_PIPE ||
		    object->pipe->read_end == object->pipe->write_end)
			continue;
		if (object->pipe->read_end && !read_given) {
			object_restore_put(restore, object->id, reader);
			read_given = true;
		} else if (object->pipe->write_end && !write_given) {
			object_restore_put(restore, object->id, writer);
			write_given = true;
		}
	}
	if (!read_given)
		close(reader);
	if (!write_given)
		close(writer);
}

/* Makes the pipe; returns a descriptor that is both ends, kept by `restore`, through which others are
 * opened. */
static int make_base(struct object_restore *restore, const Pbeam__Pipe *saved, struct err *err)
{
	int ends[2], base, r;

	if (saved->fifo) {
		base = open_fifo(saved, err);
	} else {
		if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) < 0)
			return err_sys(err, "make a pipe");
		base = object_reopen(ends[0], O_RDWR | O_NONBLOCK);
		give_ends(restore, saved->ino, ends[0], ends[1]);
		if (base < 0)
			return err_code(err, base, "open a pipe again");
	}
	if (base < 0)
		return base;
	r = object_restore_keep(restore, PBEAM__OBJECT__KIND_PIPE, saved->ino, base, err);
	return r < 0 ? r : base;
}

bool object_pipe_is_large(const Pbeam__Object *object)
{
	return object->kind_case == PBEAM__OBJECT__KIND_PIPE && !object->pipe->fifo &&
	       object->pipe->capacity > SMALL_PAGES * (uint32_t)sysconf(_SC_PAGESIZE);
}

uint64_t object_pipe_pages(const Pbeam__Object *object)
{
	return object_pipe_is_large(object) && object->pipe->read_end
		       ? object->pipe->capacity / (uint64_t)sysconf(_SC_PAGESIZE)
		       : 0;
}

/* Reserves the pages for a moment, in a few pipes of the greatest size, as the user's use cannot be read. The
 * kernel refuses a size with which the user would exceed the soft limit (pipe_set_size() in fs/pipe.c, 6.18).
 * Other failures say nothing about that limit. */
static bool can_have_pages(uint64_t pages)
{
	auto_free char *text = NULL;
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), most;
	int ends[RESERVE_MAX][2], made = 0;
	bool can = true;

	if (pages == 0 || io_slurp(AT_FDCWD, "/proc/sys/fs/pipe-max-size", 64, &text, NULL) < 0)
		return true;
	most = strtoull(text, NULL, 10) / page;

	while (can && pages > 0 && made < RESERVE_MAX) {
		uint64_t some = SMALL_PAGES;

		if (pipe2(ends[made], O_CLOEXEC) < 0)
			break;
		while (some * 2 <= pages && some * 2 <= most)
			some *= 2;
		can = fcntl(ends[made][1], F_SETPIPE_SZ, (int)(some * page)) >= 0 || errno != EPERM;
		made++;
		pages = some < pages ? pages - some : 0;
	}
	while (made-- > 0) {
		close(ends[made][0]);
		close(ends[made][1]);
	}
	return can;
}

bool object_pipes_have_room(const struct object_restore *restore)
{
	uint64_t pages = 0;

	for (size_t i = 0; i < restore->nslots; i++)
		pages += object_pipe_pages(restore->slots[i].object);
	return can_have_pages(pages);
}

static int set_capacity(const Pbeam__Pipe *saved, int fd, struct err *err)
{
	if (fcntl(fd, F_GETPIPE_SZ) != (int)saved->capacity && fcntl(fd, F_SETPIPE_SZ, saved->capacity) < 0)
		return err_sys(err, "set a pipe's capacity to %u", saved->capacity);
	return 0;
}

/* The contents, through an end that nothing else uses yet. */
static int fill_through(struct object_restore *restore, const Pbeam__Pipe *contents, int writer,
			struct err *err)
{
	if (contents->packet && fcntl(writer, F_SETFL, O_NONBLOCK | O_DIRECT) < 0)
		return err_sys(err, "put a pipe into packet mode");
	return pipe_fill(restore, contents, writer, err);
}

/* Makes a pipe of at most two descriptions, and gives them out. The coordinator has no descriptor of it
 * besides, so that it can make as many pipes as the program had. */
static int make_plain(struct object_restore *restore, const Pbeam__Pipe *saved, struct err *err)
{
	const Pbeam__Pipe *contents = pipe_find_contents(restore, saved->ino);
	auto_close int reader = -1, writer = -1;
	int ends[2], r;

	if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) < 0)
		return err_sys(err, "make a pipe");
	reader = ends[0];
	writer = ends[1];
	r = set_capacity(saved, writer, err);
	if (r == 0 && contents && contents->contents)
		r = fill_through(restore, contents, writer, err);
	if (r < 0)
		return r;
	give_ends(restore, saved->ino, steal_fd(&reader), steal_fd(&writer));
	return 0;
}

/* The same for a FIFO, and for a pipe of more descriptions. */
static int make_pipe(struct object_restore *restore, const Pbeam__Pipe *saved, struct err *err)
{
	const Pbeam__Pipe *contents = pipe_find_contents(restore, saved->ino);
	auto_close int writer = -1;
	int base = make_base(restore, saved, err), r;

	if (base < 0)
		return base;
	if (saved->fifo && object_restore_is_beside(restore))
		r = fcntl(base, F_GETPIPE_SZ) < (int)saved->capacity ? set_capacity(saved, base, err) : 0;
	else
		r = set_capacity(saved, base, err);
	if (r < 0)
		return r;
	if (!contents || !contents->contents || (saved->fifo && object_restore_is_beside(restore)))
		return base;
	writer = object_reopen(base, O_WRONLY | O_NONBLOCK);
	if (writer < 0)
		return err_code(err, writer, "open a pipe again");
	r = fill_through(restore, contents, writer, err);
	return r < 0 ? r : base;
}

static int pipe_restore(struct object_restore *restore, const Pbeam__Object *object, int *fd, struct err *err)
{
	const Pbeam__Pipe *saved = object->pipe;
	int base = object_restore_kept(restore, PBEAM__OBJECT__KIND_PIPE, saved->ino);
	int mode = saved->read_end && saved->write_end ? O_RDWR : saved->read_end ? O_RDONLY : O_WRONLY;

	if (base < 0)
		base = wants_base(restore, saved) ? make_pipe(restore, saved, err)
						  : make_plain(restore, saved, err);
	if (base < 0)
		return base;
	*fd = object_restore_peek(restore, object->id);
	if (*fd >= 0)
		return 0; /* given its end just now */
	*fd = object_reopen(base, mode | O_NONBLOCK);
	return *fd < 0 ? err_code(err, *fd, "open an end of a pipe") : 0;
}

static int pipe_take_over(struct object_restore *restore, const Pbeam__Object *object, int fd,
			  struct err *err)
{
	const Pbeam__Pipe *saved = object->pipe;
	auto_close int both = -1, writer = -1;
	char waste[4096];
	int r;

	if (!saved->fifo || !saved->has_contents)
		return 0;
	both = object_reopen(fd, O_RDWR | O_NONBLOCK);
	writer = object_reopen(fd, O_WRONLY | O_NONBLOCK);
	if (both < 0 || writer < 0)
		return err_code(err, both < 0 ? both : writer, "open a FIFO again");
	while (read(both, waste, sizeof(waste)) > 0)
		;
	r = set_capacity(saved, both, err);
	return r == 0 && saved->contents ? fill_through(restore, saved, writer, err) : r;
}

static int pipe_visit_files(Pbeam__Object *object, const struct object_visitor *visitor)
{
	int r = visitor->path(visitor->arg, &object->pipe->fifo_path);

	if (r < 0 || !object->pipe->fifo)
		return r;
	return visitor->path(visitor->arg, &object->pipe->fifo->path);
}

static void pipe_shift(Pbeam__Object *object, const struct object_shift *shift)
{
	object->pipe->ino += shift->ino;
}

static uint64_t pipe_ino(const Pbeam__Object *object)
{
	return object->pipe->ino;
}

/* It was filled when it was made. */
static int pipe_end_refill(struct object_restore *restore, const Pbeam__Object *object, int fd, int *other,
			   struct err *err)
{
	*other = object_restore_kept(restore, PBEAM__OBJECT__KIND_PIPE, object->pipe->ino);
	return 0;
}

static int pipe_make_closed(const Pbeam__Object *object, int *fd, struct err *err)
{
	const int own = (object->flags & O_ACCMODE) == O_WRONLY;
	int ends[2];

	if (pipe2(ends, O_CLOEXEC) < 0)
		return err_sys(err, "make a pipe");
	close(ends[!own]);
	*fd = ends[own];
	return 0;
}

static const struct object_end_ops pipe_end = {
	.ino = pipe_ino, .refill = pipe_end_refill, .make_closed = pipe_make_closed};

const struct object_ops object_pipe = {
	.name = "pipe",
	.kind = PBEAM__OBJECT__KIND_PIPE,
	.phase = 1,
	.match = pipe_match,
	.dump = pipe_dump,
	.verify = pipe_verify,
	.check = pipe_check,
	.restore = pipe_restore,
	.take_over = pipe_take_over,
	.visit_files = pipe_visit_files,
	.shift = pipe_shift,
	.end = &pipe_end,
};
