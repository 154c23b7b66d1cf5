/*
 * The joined manifest borrows its entries from the parts' manifests, which are changed in place. It owns only
 * its lists until it is packed into the new file.
 */
#include "scip/rejoin/cut_join.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/cleanup.h"
#include "image/layout.h"
#include "image/store.h"
#include "proto/message.h"
#include "scip/object/common.h"
#include "scip/object/object_end.h"
#include "scip/rebuild/rebuild.h"

enum { INO_SHIFT = 56 };

/* ---- numbers ---- */

struct part_shift {
	uint64_t bytes; /* added to offsets in the file */
	struct object_shift numbers;
};

static int shift_object(const struct object_shift *shift, Pbeam__Object *object)
{
	const struct object_ops *ops = object_ops_of(object);

	if (!ops)
		return -EBADMSG;
	object->id += shift->object;
	ops->shift(object, shift);
	return 0;
}

static void shift_shared(const struct object_shift *shift, Pbeam__SharedMemory *shared)
{
	shared->id += shift->shared;
	if (shared->kind != PBEAM__SHARED_MEMORY__KIND__POSIX_FILE || (shared->file && shared->file->deleted))
		shared->ino += shift->ino;
}

static void shift_offset(const struct part_shift *part, uint64_t *offset, uint64_t length)
{
	*offset += length ? part->bytes : 0;
}

static int shift_message(void *arg, ProtobufCMessage *message)
{
	const struct part_shift *part = arg;
	const struct object_shift *shift = &part->numbers;
	const ProtobufCMessageDescriptor *kind = message->descriptor;
	void *at = message;

	if (kind == &pbeam__extent__descriptor) {
		Pbeam__Extent *extent = at;

		shift_offset(part, &extent->offset, extent->length);
	} else if (kind == &pbeam__pages__descriptor) {
		Pbeam__Pages *pages = at;

		shift_offset(part, &pages->offset, pages->count);
	} else if (kind == &pbeam__object__descriptor) {
		return shift_object(shift, at);
	} else if (kind == &pbeam__shared_memory__descriptor) {
		shift_shared(shift, at);
	} else if (kind == &pbeam__descriptor__descriptor) {
		((Pbeam__Descriptor *)at)->object += shift->object;
	} else if (kind == &pbeam__epoll_entry__descriptor) {
		Pbeam__EpollEntry *entry = at;

		entry->object += entry->object ? shift->object : 0;
	} else if (kind == &pbeam__file_lock__descriptor) {
		Pbeam__FileLock *lock = at;

		lock->object += lock->object ? shift->object : 0;
	} else if (kind == &pbeam__datagram__descriptor) {
		const Pbeam__Datagram *datagram = at;

		for (size_t i = 0; i < datagram->n_passed_objects; i++)
			datagram->passed_objects[i] += shift->object;
	} else if (kind == &pbeam__mapping__descriptor) {
		Pbeam__Mapping *map = at;

		map->shared_id += map->shared_id ? shift->shared : 0;
	}
	return 0;
}

/* ---- terminals ---- */

static bool is_console(const Pbeam__Object *object)
{
	return object->kind_case == PBEAM__OBJECT__KIND_CONSOLE ||
	       (object_tty_of(object) && object_tty_of(object)->console);
}

static const Pbeam__Object *find_terminal(const Pbeam__Manifest *manifest, uint64_t number)
{
	for (size_t i = 0; i < manifest->n_objects; i++)
		if (object_tty_of(manifest->objects[i]) && object_tty_of(manifest->objects[i])->pty == number)
			return manifest->objects[i];
	return NULL;
}

/* Gives a terminal of `more` another number if `all` has a terminal of the same number. */
static void rename_terminals(const Pbeam__Manifest *all, const Pbeam__Manifest *more)
{
	for (size_t i = 0; i < more->n_objects; i++) {
		const Pbeam__Tty *tty = object_tty_of(more->objects[i]);
		const Pbeam__Object *other = tty ? find_terminal(all, tty->pty) : NULL;
		uint64_t old = tty ? tty->pty : 0, number = old;

		if (!other || (is_console(other) && is_console(more->objects[i])))
			continue;
		while (find_terminal(all, number) || find_terminal(more, number))
			number++;
		for (size_t k = i; k < more->n_objects; k++)
			if (object_tty_of(more->objects[k]) && object_tty_of(more->objects[k])->pty == old)
				object_tty_of(more->objects[k])->pty = number;
	}
}

/* Clears the console's state. Only the part with the job's root process knows the console's state. */
static void forget_console(const Pbeam__Manifest *manifest)
{
	for (size_t i = 0; i < manifest->n_objects; i++) {
		const Pbeam__Object *object = manifest->objects[i];
		Pbeam__Tty *tty = object_tty_of(object);

		if (!tty || !is_console(object))
			continue;
		tty->termios.len = 0;
		tty->foreground_vpgid = tty->session_vsid = 0;
	}
}

/* ---- System V objects, whose ids must be unique on a host ---- */

static int check_sysv(const Pbeam__Manifest *all, const Pbeam__Manifest *more, struct err *err)
{
	const char *what = NULL;
	int32_t id = 0;

	for (size_t i = 0; i < all->n_shared && !what; i++)
		for (size_t k = 0; k < more->n_shared && !what; k++)
			if (all->shared[i]->kind == PBEAM__SHARED_MEMORY__KIND__SYSV &&
			    more->shared[k]->kind == PBEAM__SHARED_MEMORY__KIND__SYSV &&
			    all->shared[i]->sysv_id == more->shared[k]->sysv_id) {
				what = "shared memory segment";
				id = all->shared[i]->sysv_id;
			}
	for (size_t i = 0; i < all->n_sysv_sets && !what; i++)
		for (size_t k = 0; k < more->n_sysv_sets && !what; k++)
			if (all->sysv_sets[i]->id == more->sysv_sets[k]->id) {
				what = "semaphore set";
				id = all->sysv_sets[i]->id;
			}
	for (size_t i = 0; i < all->n_sysv_queues && !what; i++)
		for (size_t k = 0; k < more->n_sysv_queues && !what; k++)
			if (all->sysv_queues[i]->id == more->sysv_queues[k]->id) {
				what = "message queue";
				id = all->sysv_queues[i]->id;
			}
	return what ? err_set(err, -EEXIST,
			      "the job has a System V %s with number %d on two hosts, so these parts cannot "
			      "be on one host; name another host with --on",
			      what, id)
		    : 0;
}

/* ---- the tree ---- */

struct member {
	Pbeam__Process *process;
	size_t at; /* index in the appended lists, which keeps the order stable */
	int depth;
};

static int by_vpid(const void *a, const void *b)
{
	const struct member *x = a, *y = b;
	bool stub_x = x->process->state == PBEAM__PROCESS__STATE__STUB,
	     stub_y = y->process->state == PBEAM__PROCESS__STATE__STUB;

	if (x->process->vpid != y->process->vpid)
		return x->process->vpid < y->process->vpid ? -1 : 1;
	return stub_x != stub_y ? stub_x - stub_y : (x->at > y->at) - (x->at < y->at);
}

static int by_depth(const void *a, const void *b)
{
	const struct member *x = a, *y = b;

	return x->depth != y->depth ? x->depth - y->depth : (x->at > y->at) - (x->at < y->at);
}

/* Removes the stub of each process that is in another part. The process keeps what its parent knows of the
 * stub: parent, exit signal, place in the list. Returns the number of members left, or -EBADMSG. */
static int take_stubs(struct member *members, size_t n, struct err *err)
{
	size_t kept = 0;

	bytes_sort(members, n, sizeof(*members), by_vpid);
	for (size_t i = 0; i < n; i++) {
		Pbeam__Process *process = members[i].process, *own = kept ? members[kept - 1].process : NULL;

		if (!own || own->vpid != process->vpid) {
			members[kept++] = members[i];
			continue;
		}
		if (process->state != PBEAM__PROCESS__STATE__STUB)
			return err_set(err, -EBADMSG, "vpid %d is in two parts of the cut", process->vpid);
		own->vppid = process->vppid;
		own->exit_signal = process->exit_signal;
		own->remote_parent = false;
		if (members[i].at < members[kept - 1].at)
			members[kept - 1].at = members[i].at;
	}
	return (int)kept;
}

static const struct member *find_member(const struct member *members, size_t n, int32_t vpid)
{
	size_t from = 0, to = n;

	while (from < to) {
		size_t middle = from + (to - from) / 2;

		if (members[middle].process->vpid < vpid)
			from = middle + 1;
		else
			to = middle;
	}
	return from < n && members[from].process->vpid == vpid ? &members[from] : NULL;
}

/* Sets each depth, so that sorting by it puts parents before their children. */
static int find_depths(struct member *members, size_t n, struct err *err)
{
	for (size_t i = 0; i < n; i++) {
		const struct member *above = &members[i];

		while (above && members[i].depth <= (int)n) {
			int32_t parent = above->process->vppid;

			above = parent == above->process->vpid ? NULL : find_member(members, n, parent);
			members[i].depth += above != NULL;
		}
		if (members[i].depth > (int)n)
			return err_set(err, -EBADMSG, "vpid %d descends from itself",
				       members[i].process->vpid);
	}
	return 0;
}

static int join_processes(Pbeam__Manifest *manifest, struct err *err)
{
	auto_free struct member *members = calloc(manifest->n_processes + 1, sizeof(*members));
	int n, r;

	if (!members)
		return err_code(err, -ENOMEM, "list the processes");
	for (size_t i = 0; i < manifest->n_processes; i++)
		members[i] = (struct member){.process = manifest->processes[i], .at = i};
	n = r = take_stubs(members, manifest->n_processes, err);
	if (r > 0)
		r = find_depths(members, (size_t)n, err);
	if (r < 0)
		return r;
	bytes_sort(members, (size_t)n, sizeof(*members), by_depth);
	for (int i = 0; i < n; i++)
		manifest->processes[i] = members[i].process;
	manifest->n_processes = (size_t)n;
	return 0;
}

/* ---- the file ---- */

static int copy_data(const struct image_reader *from, struct image_writer *to, struct part_shift *shift,
		     struct err *err)
{
	uint64_t len = image_reader_data_end(from) - IMAGE_DATA_OFFSET, at;
	off_t in = IMAGE_DATA_OFFSET, out;

	at = image_arena_take(image_writer_arena(to), len);
	shift->bytes = at - IMAGE_DATA_OFFSET;
	out = (off_t)at;
	while (out < (off_t)(at + len)) {
		ssize_t n = copy_file_range(image_reader_fd(from), &in, image_writer_fd(to), &out,
					    (size_t)((off_t)(at + len) - out), 0);

		if (n <= 0)
			return n < 0 ? err_sys(err, "copy the image of a part")
				     : err_code(err, -EIO, "copy the image of a part");
	}
	image_arena_written(image_writer_arena(to), at, len);
	return 0;
}

static int join_append(void *array, size_t *n, void *more, size_t nmore, struct err *err)
{
	void ***list = array;
	void **grown = reallocarray(*list, *n + nmore + 1, sizeof(**list));

	if (!grown)
		return err_code(err, -ENOMEM, "the images of the parts");
	*list = grown;
	bytes_copy(grown + *n, more, nmore * sizeof(*grown));
	*n += nmore;
	return 0;
}

/* Appends the lists. Single values stay those of the first part. */
static int append_manifest(Pbeam__Manifest *all, const Pbeam__Manifest *more, struct err *err)
{
	int r = join_append(&all->processes, &all->n_processes, more->processes, more->n_processes, err);

	if (r == 0)
		r = join_append(&all->objects, &all->n_objects, more->objects, more->n_objects, err);
	if (r == 0)
		r = join_append(&all->shared, &all->n_shared, more->shared, more->n_shared, err);
	if (r == 0)
		r = join_append(&all->files, &all->n_files, more->files, more->n_files, err);
	if (r == 0)
		r = join_append(&all->sysv_sets, &all->n_sysv_sets, more->sysv_sets, more->n_sysv_sets, err);
	if (r == 0)
		r = join_append(&all->sysv_queues, &all->n_sysv_queues, more->sysv_queues,
				more->n_sysv_queues, err);
	return r;
}

static void free_lists(Pbeam__Manifest *all)
{
	free(all->processes);
	free(all->objects);
	free(all->shared);
	free(all->files);
	free(all->sysv_sets);
	free(all->sysv_queues);
}

static uint32_t highest_object(const Pbeam__Manifest *manifest)
{
	uint32_t highest = 0;

	for (size_t i = 0; i < manifest->n_objects; i++)
		if (manifest->objects[i]->id > highest)
			highest = manifest->objects[i]->id;
	return highest;
}

static uint32_t highest_shared(const Pbeam__Manifest *manifest)
{
	uint32_t highest = 0;

	for (size_t i = 0; i < manifest->n_shared; i++)
		if (manifest->shared[i]->id > highest)
			highest = manifest->shared[i]->id;
	return highest;
}

/* Takes the lists of the first part as empty ones: append_manifest() fills them. */
static void begin_manifest(Pbeam__Manifest *all, const Pbeam__Manifest *first)
{
	*all = *first;
	all->processes = NULL;
	all->objects = NULL;
	all->shared = NULL;
	all->files = NULL;
	all->sysv_sets = NULL;
	all->sysv_queues = NULL;
	all->n_processes = all->n_objects = all->n_shared = all->n_files = 0;
	all->n_sysv_sets = all->n_sysv_queues = 0;
}

/* Changes the part's manifest so that no number in it is one of `all`, and appends it. */
static int add_part(Pbeam__Manifest *all, struct image_reader *part, uint64_t index,
		    struct image_writer *writer, struct err *err)
{
	Pbeam__Manifest *manifest = (Pbeam__Manifest *)(uintptr_t)image_reader_manifest(part);
	struct part_shift shift = {.numbers = {.ino = index << INO_SHIFT,
					       .object = highest_object(all),
					       .shared = highest_shared(all),
					       .saved = (uint32_t)all->n_files}};
	int r = rebuild_check_host(manifest->host, manifest->uid, err);

	if (r < 0)
		return r;
	r = copy_data(part, writer, &shift, err);
	if (r < 0)
		return r;
	r = message_walk(&manifest->base, shift_message, &shift);
	if (r < 0)
		return err_code(err, r, "renumber the image of a part");
	if (index == 0) {
		begin_manifest(all, manifest);
		return append_manifest(all, manifest, err);
	}
	forget_console(manifest);
	rename_terminals(all, manifest);
	r = check_sysv(all, manifest, err);
	return r < 0 ? r : append_manifest(all, manifest, err);
}

static int open_part(const Pbeam__CutImageName *cut, uint32_t part, struct image_reader **out,
		     struct err *err)
{
	const Pbeam__Manifest *manifest;
	char path[PATH_MAX];
	int r = store_image_path(cut->name, cut->number, part, path, err);

	if (r == 0)
		r = image_reader_open(out, path, err);
	if (r == 0)
		r = image_reader_verify(*out, err);
	if (r < 0)
		return r;
	manifest = image_reader_manifest(*out);
	if (image_reader_ancestors(*out))
		return err_set(err, -ENOTSUP,
			       "%s has pages in its parent %s; a part of a cut must be complete", path,
			       manifest->parent->name);
	return manifest->cut || manifest->partial || !manifest->job
		       ? err_set(err, -EBADMSG, "%s is not a part of a cut", path)
		       : 0;
}

static int join_finish(Pbeam__Manifest *all, struct image_writer *writer, struct image_reader **out,
		       struct err *err)
{
	uint64_t bytes;
	int r = join_processes(all, err), fd;

	if (r == 0)
		r = cut_join_streams(all, writer, err);
	if (r == 0)
		r = image_writer_commit(writer, all, false, &bytes, err);
	if (r < 0)
		return r;
	fd = fcntl(image_writer_fd(writer), F_DUPFD_CLOEXEC, 3);
	return fd < 0 ? err_sys(err, "open the images of the parts")
		      : image_reader_open_fd(out, fd, "the parts of the cut", err);
}

int cut_join(const Pbeam__CutImageName *cut, struct image_reader **out, struct err *err)
{
	size_t n = cut->n_with + 1;
	struct image_reader **parts = calloc(n, sizeof(struct image_reader *));
	Pbeam__Manifest all = PBEAM__MANIFEST__INIT;
	struct image_writer *writer = NULL;
	char path[PATH_MAX];
	int r = parts ? store_image_path(cut->name, cut->number, cut->part, path, err)
		      : err_code(err, -ENOMEM, "the images of the parts");

	if (r == 0)
		r = image_writer_open(&writer, path, 0, err);
	if (r == 0)
		r = image_writer_hide(writer, err);
	for (size_t i = 0; i < n && r == 0; i++) {
		r = open_part(cut, i ? cut->with[i - 1] : cut->part, &parts[i], err);
		if (r == 0)
			r = add_part(&all, parts[i], i, writer, err);
	}
	if (r == 0)
		r = join_finish(&all, writer, out, err);
	free_lists(&all);
	if (writer)
		image_writer_close(writer);
	for (size_t i = 0; i < n && parts; i++)
		image_reader_close(parts[i]);
	free(parts);
	return r;
}
