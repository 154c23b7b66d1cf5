/*
 * File locks, from the "lock:" lines of /proc/PID/fdinfo/N: they show the locks held through that open file
 * description, the POSIX ones only for the process asked about. A lock line reads
 *
 *	lock:	1: POSIX  ADVISORY  WRITE 4711 fe:00:1234 0 EOF
 *
 * with OFDLCK, FLOCK or LEASE in place of POSIX. POSIX locks belong to the process and are set again by
 * itself; the others belong to the description and are set by the coordinator.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/syscall.h>

#include "scip/object/common.h"
#include "scip/object/object_dump.h"
#include "scip/object/object_restore.h"

static bool same_lock(const Pbeam__FileLock *a, const Pbeam__FileLock *b)
{
	return a->object == b->object && a->type == b->type && a->start == b->start && a->length == b->length;
}

/* Adds unless it is there: a duplicated descriptor shows the same locks again. */
static int add_lock(Pbeam__FileLock ***locks, size_t *n, const Pbeam__FileLock *lock, struct err *err)
{
	Pbeam__FileLock *copy;

	for (size_t i = 0; i < *n; i++)
		if (same_lock((*locks)[i], lock))
			return 0;
	copy = malloc(sizeof(*copy));
	if (copy)
		*copy = *lock;
	if (!copy || object_append(*locks, *n, copy) < 0) {
		free(copy);
		return object_no_memory(err);
	}
	return 0;
}

static int parse_line(const char *line, int fd, const struct stat *st, Pbeam__Object *object,
		      Pbeam__Process *process, struct err *err)
{
	Pbeam__FileLock lock = PBEAM__FILE_LOCK__INIT;
	char kind[16], mode[16], type[16], end[32];
	unsigned long long start;

	/* kind, mode, type, pid, device and inode, first byte, last byte */
	if (sscanf(line, "lock: %*d: %15s %15s %15s %*s %*s %llu %31s", kind, mode, type, &start, end) != 5)
		return err_set(err, -EPROTO, "fdinfo has a lock line that is not understood: %.80s", line);
	lock.type = strcmp(type, "WRITE") == 0 ? F_WRLCK : strcmp(type, "READ") == 0 ? F_RDLCK : F_UNLCK;
	lock.start = start;
	lock.length = strcmp(end, "EOF") == 0 ? 0 : strtoull(end, NULL, 10) - start + 1;
	lock.object = object->id;
	lock.fd = fd;
	lock.dev = st->st_dev;
	lock.ino = st->st_ino;
	if (strcmp(kind, "FLOCK") == 0) {
		object->flock = lock.type == F_WRLCK ? LOCK_EX : LOCK_SH;
		return 0;
	}
	if (strcmp(kind, "LEASE") == 0) {
		if (strcmp(mode, "ACTIVE") != 0)
			return err_set(err, -EBUSY,
				       "a file whose lease is being broken; try again in a moment");
		object->lease = lock.type == F_WRLCK ? 2 : 1;
		return 0;
	}
	if (strcmp(kind, "OFDLCK") == 0) {
		lock.kind = PBEAM__FILE_LOCK__KIND__OFD;
		return add_lock(&object->ofd_locks, &object->n_ofd_locks, &lock, err);
	}
	if (strcmp(kind, "POSIX") == 0 && process) {
		lock.kind = PBEAM__FILE_LOCK__KIND__POSIX;
		return add_lock(&process->locks, &process->n_locks, &lock, err);
	}
	return strcmp(kind, "POSIX") == 0
		       ? 0
		       : err_set(err, -ENOTSUP, "a file with a lock of a kind that is not known: %s", kind);
}

int object_locks_parse(const char *fdinfo, int fd, const struct stat *st, Pbeam__Object *object,
		       Pbeam__Process *process, struct err *err)
{
	for (const char *line = strstr(fdinfo, "lock:"); line; line = strstr(line + 1, "\nlock:")) {
		int r = parse_line(*line == '\n' ? line + 1 : line, fd, st, object, process, err);

		if (r < 0)
			return r;
	}
	return 0;
}

int object_locks_restore(const Pbeam__Object *object, int fd, struct err *err)
{
	if (object->flock && flock(fd, object->flock | LOCK_NB) < 0)
		return err_sys(err, "take its flock again (another process holds it now)");
	for (size_t i = 0; i < object->n_ofd_locks; i++) {
		struct flock lock = {
			.l_type = (short)object->ofd_locks[i]->type,
			.l_whence = SEEK_SET,
			.l_start = (off_t)object->ofd_locks[i]->start,
			.l_len = (off_t)object->ofd_locks[i]->length,
		};

		if (fcntl(fd, F_OFD_SETLK, &lock) < 0)
			return err_sys(err, "take its lock again (another process holds it now)");
	}
	return 0;
}

int object_locks_install(const Pbeam__Process *process, struct batch *batch)
{
	for (size_t i = 0; i < process->n_locks; i++) {
		const Pbeam__FileLock *saved = process->locks[i];
		struct flock lock = {
			.l_type = (short)saved->type,
			.l_whence = SEEK_SET,
			.l_start = (off_t)saved->start,
			.l_len = (off_t)saved->length,
		};
		struct taddr where;
		int r = batch_data(batch, &lock, sizeof(lock), &where);

		if (r < 0)
			return r;
		r = batch_add(batch, 0, SYS_fcntl, remote_args((uint64_t)saved->fd, F_SETLK, where.a));
		if (r < 0)
			return r;
	}
	return 0;
}
