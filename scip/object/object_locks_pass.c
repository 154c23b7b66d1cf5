/*
 * How file locks pass from the processes that a rollback replaces to the new ones.
 *
 * A lock cannot be held by both, and the old processes keep theirs until the commit. So every lock is taken
 * after it. What could prevent that is looked for before: a lock of another program, in /proc/locks, whose
 * lines have the same text as those in the old processes' fdinfo (fs/locks.c, lock_get_status()).
 *
 * A program that waits for a lock gets it as soon as it is released, also if it is taken again in the next
 * call (probed on Linux 6.18). So the open file description with a lock becomes the new process's, as a
 * listening socket does: its lock is never released. A record lock ends with its process; a program that
 * waits for one would get it, and is a reason to refuse.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/io.h"
#include "base/log.h"
#include "scip/object/common.h"
#include "scip/object/object_restore.h"

enum { TAKE_AGAIN_US = 10000, TAKE_S = 10 };

bool object_locks_saved(const Pbeam__Manifest *manifest)
{
	for (size_t i = 0; i < manifest->n_objects; i++)
		if (manifest->objects[i]->flock || manifest->objects[i]->n_ofd_locks)
			return true;
	for (size_t i = 0; i < manifest->n_processes; i++)
		if (manifest->processes[i]->n_locks)
			return true;
	return false;
}

/* ---- the locks of the old processes ---- */

int object_locks_gather(struct object_restore *restore, pid_t pid, int pidfd, int number)
{
	auto_free char *text = NULL;
	struct object_locked one = {.fd = -1};
	struct stat st;
	char path[64];

	snprintf(path, sizeof(path), "/proc/%d/fdinfo/%d", pid, number);
	if (io_slurp(AT_FDCWD, path, 1 << 20, &text, NULL) < 0 || !strstr(text, "\nlock:"))
		return 0;
	one.fd = (int)syscall(SYS_pidfd_getfd, pidfd, number, 0);
	if (one.fd < 0)
		return -errno;
	if (fstat(one.fd, &st) < 0 || object_append(restore->locked, restore->nlocked, one) < 0) {
		close(one.fd);
		return -ENOMEM;
	}
	restore->locked[restore->nlocked - 1].ino = st.st_ino;
	restore->locked[restore->nlocked - 1].lines = steal_ptr(&text);
	return 0;
}

void object_locks_forget(struct object_restore *restore)
{
	for (size_t i = 0; i < restore->nlocked; i++) {
		close(restore->locked[i].fd);
		free(restore->locked[i].lines);
	}
	free(restore->locked);
	restore->locked = NULL;
	restore->nlocked = 0;
}

/* ---- the locks of other programs ---- */

struct lock_line {
	char kind[16];
	bool writes, waits;
	int pid;
	uint64_t ino, start, end;
};

/* A line after "N: ", or after "N: -> " for a lock that is waited for. */
static bool parse_lock(const char *text, struct lock_line *line)
{
	char type[16], end[32];
	unsigned long long ino, start;

	if (sscanf(text, "%15s %*s %15s %d %*x:%*x:%llu %llu %31s", line->kind, type, &line->pid, &ino,
		   &start, end) != 6)
		return false;
	line->writes = strcmp(type, "READ") != 0;
	line->ino = ino;
	line->start = start;
	line->end = strcmp(end, "EOF") == 0 ? UINT64_MAX : strtoull(end, NULL, 10);
	return true;
}

static bool is_record(const struct lock_line *line)
{
	return strcmp(line->kind, "POSIX") == 0 || strcmp(line->kind, "OFDLCK") == 0;
}

/* True if one of the old processes holds it: the text is that of a line of its fdinfo. */
static bool is_of_old(const struct object_restore *restore, const char *text, size_t len)
{
	for (size_t i = 0; i < restore->nlocked; i++)
		for (const char *at = restore->locked[i].lines; (at = strstr(at, "\nlock:")) != NULL; at++) {
			const char *own = strstr(at + 6, ": ");

			if (own && strncmp(own + 2, text, len) == 0 && own[2 + len] == '\n')
				return true;
		}
	return false;
}

static bool replaces_process(const struct object_restore *restore, int pid)
{
	for (size_t i = 0; i < restore->nreplaced; i++)
		if (restore->replaced[i].n == pid)
			return true;
	return false;
}

static bool lock_conflicts(const struct lock_line *line, bool record, bool writes, uint64_t start,
			   uint64_t length)
{
	const uint64_t end = length ? start + length - 1 : UINT64_MAX;

	if (is_record(line) != record || (!record && strcmp(line->kind, "FLOCK") != 0))
		return false;
	return (line->writes || writes) && (!record || (line->start <= end && start <= line->end));
}

/* The object of the image with a lock that this line is in the way of, or NULL. */
static const Pbeam__Object *find_locked(struct object_restore *restore, const struct lock_line *line)
{
	for (size_t i = 0; i < restore->nslots; i++) {
		const struct object_slot *slot = &restore->slots[i];
		const Pbeam__Object *object = slot->object;
		struct stat st;

		if ((!object->flock && !object->n_ofd_locks) || fstat(slot->fd, &st) < 0 ||
		    st.st_ino != line->ino)
			continue;
		if (object->flock && !line->waits &&
		    lock_conflicts(line, false, object->flock == LOCK_EX, 0, 0))
			return object;
		for (size_t n = 0; n < object->n_ofd_locks && !line->waits; n++)
			if (lock_conflicts(line, true, object->ofd_locks[n]->type == F_WRLCK,
					   object->ofd_locks[n]->start, object->ofd_locks[n]->length))
				return object;
	}
	for (size_t i = 0; i < restore->manifest->n_processes; i++)
		for (size_t n = 0; n < restore->manifest->processes[i]->n_locks; n++) {
			const Pbeam__FileLock *lock = restore->manifest->processes[i]->locks[n];
			struct stat st;

			if (lock->object < 1 || lock->object > restore->nslots ||
			    fstat(restore->slots[lock->object - 1].fd, &st) < 0 || st.st_ino != line->ino)
				continue;
			if (lock_conflicts(line, true, lock->type == F_WRLCK, lock->start, lock->length))
				return restore->slots[lock->object - 1].object;
		}
	return NULL;
}

static int set_locked(const struct object_restore *restore, const struct object_slot *slot, struct err *err)
{
	int r = err_set(err, -EAGAIN, "another program has locked it now; end that, then try again");

	return object_restore_name_error(restore, slot, r, err);
}

static int check_line(struct object_restore *restore, const char *text, size_t len, struct err *err)
{
	struct lock_line line = {.waits = strncmp(text, "-> ", 3) == 0};
	const Pbeam__Object *object;
	int r;

	if (line.waits) {
		text += 3;
		len -= 3;
	}
	if (!parse_lock(text, &line) || is_of_old(restore, text, len) ||
	    (line.waits && replaces_process(restore, line.pid)))
		return 0;
	object = find_locked(restore, &line);
	if (!object)
		return 0;
	if (!line.waits)
		return set_locked(restore, &restore->slots[object->id - 1], err);
	r = err_set(err, -EAGAIN,
		    "process %d waits for a record lock of it and would get that; end it, then try again",
		    line.pid);
	return object_restore_name_error(restore, &restore->slots[object->id - 1], r, err);
}

static bool has_flock(const struct object_restore *restore, uint64_t ino)
{
	for (size_t i = 0; i < restore->nlocked; i++)
		if (restore->locked[i].ino == ino && strstr(restore->locked[i].lines, ": FLOCK "))
			return true;
	return false;
}

/* The file leaves out the locks of processes of another pid namespace, and a flock() whose caller has ended
 * (the flock command of a script). */
static int check_hidden(struct object_restore *restore, const struct object_slot *slot, struct err *err)
{
	const Pbeam__Object *object = slot->object;
	struct stat st;

	if (object->flock && fstat(slot->fd, &st) == 0 && !has_flock(restore, st.st_ino) &&
	    flock(slot->fd, object->flock | LOCK_NB) < 0 && errno == EWOULDBLOCK)
		return set_locked(restore, slot, err);
	for (size_t i = 0; i < object->n_ofd_locks; i++) {
		struct flock lock = {.l_type = (short)object->ofd_locks[i]->type,
				     .l_whence = SEEK_SET,
				     .l_start = (off_t)object->ofd_locks[i]->start,
				     .l_len = (off_t)object->ofd_locks[i]->length};

		if (fcntl(slot->fd, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK && lock.l_pid != -1 &&
		    !replaces_process(restore, lock.l_pid))
			return set_locked(restore, slot, err);
	}
	return 0;
}

int object_locks_check(struct object_restore *restore, struct err *err)
{
	auto_free char *text = NULL;
	char *rest, *line;
	int r = 0;

	if (!restore->beside || !object_locks_saved(restore->manifest))
		return 0;
	for (size_t i = 0; i < restore->nslots && r == 0; i++)
		r = check_hidden(restore, &restore->slots[i], err);
	if (r < 0 || io_slurp(AT_FDCWD, "/proc/locks", 64 << 20, &text, NULL) < 0)
		return r;
	for (line = strtok_r(text, "\n", &rest); line && r == 0; line = strtok_r(NULL, "\n", &rest)) {
		const char *what = strstr(line, ": ");

		if (what)
			r = check_line(restore, what + 2, strlen(what + 2), err);
	}
	return r;
}

/* ---- after the commit ---- */

static bool is_locked_file(const struct object_slot *slot, int fd)
{
	const Pbeam__RegularFile *regular = slot->object->regular;
	auto_free char *path = object_text(&regular->file->path);
	struct stat st, named;

	return path && fstat(fd, &st) == 0 && st.st_dev == regular->file->dev &&
	       st.st_ino == regular->file->ino && stat(path, &named) == 0 && named.st_dev == st.st_dev &&
	       named.st_ino == st.st_ino;
}

void object_locks_share(struct object_restore *restore, struct object_slot *slot)
{
	const Pbeam__Object *object = slot->object;

	if (object->kind_case != PBEAM__OBJECT__KIND_REGULAR || (!object->flock && !object->n_ofd_locks) ||
	    object->regular->unlinked || object->regular->console)
		return;
	for (size_t i = 0; i < restore->nlocked; i++) {
		struct object_locked *locked = &restore->locked[i];
		int flags = fcntl(locked->fd, F_GETFL);

		if (locked->shared || flags < 0 ||
		    ((flags ^ (int)object->flags) & ~OBJECT_STATUS_FLAGS & ~O_ASYNC) ||
		    !is_locked_file(slot, locked->fd) ||
		    (object->flock && !strstr(locked->lines, ": FLOCK ")) ||
		    (object->n_ofd_locks && !strstr(locked->lines, ": OFDLCK ")))
			continue;
		slot->fd = fcntl(locked->fd, F_DUPFD_CLOEXEC, 3);
		if (slot->fd < 0)
			return;
		slot->state = OBJECT_MADE;
		slot->shared = locked->shared = true;
		return;
	}
}

/* Releases the ranges of a shared description that the image has not locked. */
static void release_rest(const Pbeam__Object *object, int fd)
{
	uint64_t at = 0;

	if (!object->flock)
		(void)!flock(fd, LOCK_UN);
	for (bool more = true; more;) {
		struct flock gap = {.l_type = F_UNLCK, .l_whence = SEEK_SET, .l_start = (off_t)at};
		const Pbeam__FileLock *next = NULL;

		for (size_t i = 0; i < object->n_ofd_locks; i++)
			if (object->ofd_locks[i]->start >= at &&
			    (!next || object->ofd_locks[i]->start < next->start))
				next = object->ofd_locks[i];
		gap.l_len = next ? (off_t)(next->start - at) : 0;
		if (!next || gap.l_len > 0)
			(void)!fcntl(fd, F_OFD_SETLK, &gap);
		more = next && next->length;
		at = more ? next->start + next->length : 0;
	}
}

/* Releases what the old processes' other descriptions of this file have. */
static void release_old(const struct object_restore *restore, uint64_t ino)
{
	struct flock all = {.l_type = F_UNLCK, .l_whence = SEEK_SET};

	for (size_t i = 0; i < restore->nlocked; i++) {
		if (restore->locked[i].ino != ino || restore->locked[i].shared)
			continue;
		(void)!flock(restore->locked[i].fd, LOCK_UN);
		(void)!fcntl(restore->locked[i].fd, F_OFD_SETLK, &all);
	}
}

static int take_slot_locks(struct object_restore *restore, const struct object_slot *slot, struct err *err)
{
	const uint64_t end = io_now_ns(CLOCK_MONOTONIC) + TAKE_S * 1000000000ull;
	struct stat st;
	int r;

	if (fstat(slot->fd, &st) < 0)
		return err_sys(err, "look at a locked file");
	release_old(restore, st.st_ino);
	while ((r = object_locks_restore(slot->object, slot->fd, err)) == -EAGAIN &&
	       io_now_ns(CLOCK_MONOTONIC) < end) {
		err_clear(err);
		usleep(TAKE_AGAIN_US);
	}
	if (r == 0 && slot->shared)
		release_rest(slot->object, slot->fd);
	return r < 0 ? object_restore_name_error(restore, slot, r, err) : 0;
}

int object_locks_take(struct object_restore *restore, struct err *err)
{
	int r = 0;

	for (size_t i = 0; i < restore->nslots; i++) {
		const struct object_slot *slot = &restore->slots[i];
		int one = slot->object->flock || slot->object->n_ofd_locks
				  ? take_slot_locks(restore, slot, err)
				  : 0;

		if (one < 0) {
			log_error("restore: %s", err->text);
			err_clear(err);
			r = one;
		}
	}
	return r;
}
