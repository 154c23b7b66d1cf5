/*
 * What a filled process takes over when a process that it replaces has ended: record locks, which belong to a
 * process and exclude each other, and adjustments of System V semaphores, which the end of a process applies.
 *
 * The arguments are in a page that is mapped for this purpose, as the injected code is gone by then.
 */
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/sem.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/page.h"
#include "scip/fill/fill.h"
#include "scip/tracee/memory.h"
#include "scip/tracee/remote.h"

static int take_call(struct tracee *leader, int64_t *ret, int64_t nr, const uint64_t args[6], struct err *err)
{
	int r = remote_call(leader, ret, err, nr, args);

	return r < 0 ? r : *ret < 0 ? (int)*ret : 0;
}

static int take_record_lock(struct tracee *leader, struct taddr page, const Pbeam__FileLock *saved,
			    struct err *err)
{
	struct flock lock = {
		.l_type = (short)saved->type,
		.l_whence = SEEK_SET,
		.l_start = (off_t)saved->start,
		.l_len = (off_t)saved->length,
	};
	int64_t ret;
	int r = memory_write(leader->process, page, &lock, sizeof(lock));

	if (r == 0)
		r = take_call(leader, &ret, SYS_fcntl, remote_args((uint64_t)saved->fd, F_SETLK, page.a),
			      err);
	if (r == -EACCES)
		r = -EAGAIN;
	return r < 0 ? err_code(err, r, "take its record lock of fd %d again", saved->fd) : 0;
}

static int take_semop(struct tracee *leader, struct taddr page, const Pbeam__ScipTake__Semop *semop,
		      struct err *err)
{
	const size_t n = semop->operations.len / sizeof(struct sembuf);
	int64_t ret;
	int r;

	if (semop->operations.len > PAGE || semop->operations.len % sizeof(struct sembuf) || n == 0)
		return err_set(err, -EPROTO, "the operations on semaphores are malformed");
	r = memory_write(leader->process, page, semop->operations.data, semop->operations.len);
	if (r == 0)
		r = take_call(leader, &ret, SYS_semop, remote_args((uint64_t)semop->id, page.a, n), err);
	return r < 0 ? err_code(err, r, "adjust its semaphores %d", semop->id) : 0;
}

int fill_take(struct process *process, const Pbeam__ScipTake *take, struct err *err)
{
	struct tracee *leader = process_leader(process);
	int64_t page, ignored;
	int r;

	if (!leader)
		return err_code(err, -ESRCH, "vpid %d", process->vpid.n);
	r = take_call(
		leader, &page, SYS_mmap,
		remote_args(0, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, (uint64_t)-1, 0),
		err);
	if (r < 0)
		return err_code(err, r, "make room for arguments");
	for (size_t i = 0; i < take->n_locks && r == 0; i++)
		r = take_record_lock(leader, (struct taddr){(uint64_t)page}, take->locks[i], err);
	for (size_t i = 0; i < take->n_semops && r == 0; i++)
		r = take_semop(leader, (struct taddr){(uint64_t)page}, take->semops[i], err);
	if (take_call(leader, &ignored, SYS_munmap, remote_args((uint64_t)page, PAGE), NULL) < 0 && r == 0)
		r = err_set(err, -EFAULT, "unmap the arguments");
	return r < 0 ? err_wrap(err, r, "vpid %d", process->vpid.n) : 0;
}
