/*
 * inotify: the watches under their numbers.
 *
 * fdinfo has number, mask, device and inode of each watch, but not its path. That was recorded when the watch
 * was made (namespace/record.h), and must still lead to the same inode. The kernel gives numbers in ascending
 * order, so watches are made in that order, with temporary ones in between where numbers are missing; the
 * events that these leave in the queue are read.
 *
 * Unread events are refused: they can be read but not queued again, neither for a program that goes on nor
 * for a restored one. Programs usually read them soon.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "base/bytes.h"
#include "namespace/record.h"
#include "scip/object/common.h"
#include "scip/object/object_table.h"

#define WATCH_MAX 1000000 /* higher numbers take too long to reach */

static bool inotify_match(struct object_dump *dump, const struct object_source *source)
{
	return strcmp(source->link, "anon_inode:inotify") == 0;
}

static uint32_t sdev_of(const struct stat *st)
{
	return major(st->st_dev) << 20 | minor(st->st_dev);
}

static bool is_watched(const char *path, uint32_t sdev, uint64_t ino)
{
	struct stat st;

	return lstat(path, &st) == 0 &&
	       ((st.st_ino == ino && sdev_of(&st) == sdev) ||
		(S_ISLNK(st.st_mode) && stat(path, &st) == 0 && st.st_ino == ino && sdev_of(&st) == sdev));
}

/* As it was recorded; else the name of something open in the group. */
static int find_path(struct object_dump *dump, uint32_t sdev, uint64_t ino, char *path, size_t size)
{
	const struct object_source *other;

	if (record_watch_find(object_dump_keeper(dump), sdev, ino, path, size) == 0 &&
	    is_watched(path, sdev, ino))
		return 0;
	for (size_t i = 0; (other = object_dump_source(dump, i)) != NULL; i++)
		if (other->st.st_ino == ino && sdev_of(&other->st) == sdev && other->link[0] == '/' &&
		    is_watched(other->link, sdev, ino)) {
			snprintf(path, size, "%s", other->link);
			return 0;
		}
	return -ENOENT;
}

static int add_watch(struct object_dump *dump, Pbeam__Inotify *out, int wd, uint64_t ino, uint32_t sdev,
		     uint32_t mask, struct err *err)
{
	char path[4096];
	Pbeam__InotifyWatch *watch;

	if (find_path(dump, sdev, ino, path, sizeof(path)) < 0)
		return err_set(
			err, -ENOTSUP,
			"an inotify instance whose watch %d is on something (inode %llu) that has no known "
			"name any more; remove that watch first",
			wd, (unsigned long long)ino);
	watch = object_message(Pbeam__InotifyWatch, pbeam__inotify_watch__init);
	if (!watch || object_append(out->watches, out->n_watches, watch) < 0) {
		free(watch);
		return object_no_memory(err);
	}
	watch->wd = wd;
	watch->mask = mask;
	watch->ino = ino;
	watch->dev = sdev;
	return object_set_bytes(&watch->path, path, strlen(path), err);
}

static int compare_watches(const void *a, const void *b)
{
	const Pbeam__InotifyWatch *one = *(Pbeam__InotifyWatch *const *)a;
	const Pbeam__InotifyWatch *other = *(Pbeam__InotifyWatch *const *)b;

	return one->wd < other->wd ? -1 : one->wd > other->wd;
}

static int inotify_dump(struct object_dump *dump, const struct object_source *source, Pbeam__Object *object,
			struct err *err)
{
	Pbeam__Inotify *out = object_message(Pbeam__Inotify, pbeam__inotify__init);
	int waiting = 0;

	object->inotify = out;
	if (!out)
		return object_no_memory(err);
	if (ioctl(source->local, FIONREAD, &waiting) < 0 || waiting)
		return err_set(
			err, -EBUSY,
			"an inotify instance with %d bytes of events that were not read yet, which cannot be "
			"saved; let the program read them, then try again",
			waiting);
	for (const char *line = strstr(source->fdinfo, "inotify wd:"); line;
	     line = strstr(line + 1, "inotify wd:")) {
		unsigned wd, sdev, mask;
		unsigned long long ino;
		int r;

		if (sscanf(line, "inotify wd:%x ino:%llx sdev:%x mask:%x", &wd, &ino, &sdev, &mask) != 4)
			return err_set(err, -EPROTO, "an inotify instance whose fdinfo is not understood");
		r = add_watch(dump, out, (int)wd, ino, sdev, mask, err);
		if (r < 0)
			return r;
	}
	if (out->n_watches)
		bytes_sort(out->watches, out->n_watches, sizeof(Pbeam__InotifyWatch *), compare_watches);
	return 0;
}

static int inotify_check(struct object_restore *restore, const Pbeam__Object *object, struct err *err)
{
	const Pbeam__Inotify *saved = object->inotify;

	for (size_t i = 0; i < saved->n_watches; i++) {
		auto_free char *path = object_text(&saved->watches[i]->path);

		if (!path)
			return object_no_memory(err);
		if (saved->watches[i]->wd <= (i ? saved->watches[i - 1]->wd : 0) ||
		    saved->watches[i]->wd > WATCH_MAX)
			return err_set(err, -EBADMSG, "the image's inotify watches are malformed");
		if (access(path, F_OK) < 0 && !object_restore_force(restore))
			return err_sys(err, "%s, which is watched, is missing; make it again, or use --force",
				       path);
	}
	return 0;
}

/* The watch gets its number: the kernel counts upwards, whatever was removed. */
static int make_watch(int fd, const Pbeam__InotifyWatch *watch, const char *path)
{
	for (;;) {
		int wd = inotify_add_watch(fd, path, watch->mask);

		if (wd < 0)
			return -errno;
		if (wd == watch->wd)
			return 0;
		if (inotify_rm_watch(fd, wd) < 0)
			return -errno;
		if (wd > watch->wd)
			return -EEXIST;
	}
}

static int inotify_finish(struct object_restore *restore, const Pbeam__Object *object, int fd,
			  struct err *err)
{
	const Pbeam__Inotify *saved = object->inotify;
	char buf[4096];

	for (size_t i = 0; i < saved->n_watches; i++) {
		auto_free char *path = object_text(&saved->watches[i]->path);
		int r = path ? make_watch(fd, saved->watches[i], path) : -ENOMEM;

		if (r < 0 && !(r == -ENOENT && object_restore_force(restore)))
			return err_code(err, r, "watch %s again", path ? path : "");
	}
	/* Those removed in between have left IN_IGNORED. */
	while (read(fd, buf, sizeof(buf)) > 0)
		;
	return 0;
}

static int inotify_restore(struct object_restore *restore, const Pbeam__Object *object, int *fd,
			   struct err *err)
{
	*fd = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
	return *fd < 0 ? err_sys(err, "make an inotify instance") : 0;
}

static int inotify_visit_files(Pbeam__Object *object, const struct object_visitor *visitor)
{
	int r = 0;

	for (size_t i = 0; i < object->inotify->n_watches && r == 0; i++)
		r = visitor->path(visitor->arg, &object->inotify->watches[i]->path);
	return r;
}

const struct object_ops object_inotify = {
	.name = "inotify instance",
	.kind = PBEAM__OBJECT__KIND_INOTIFY,
	/* Finished last, because the other objects' restore touches files. */
	.phase = 2,
	.match = inotify_match,
	.dump = inotify_dump,
	.check = inotify_check,
	.restore = inotify_restore,
	.finish = inotify_finish,
	.visit_files = inotify_visit_files,
	.shift = object_shift_none,
};
