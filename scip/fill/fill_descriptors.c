/*
 * The descriptor table. Every descriptor is fetched from the coordinator, which has made the objects.
 *
 * pidfd_getfd() returns the lowest free number. The table is empty and is filled from below, so that number
 * is known: without a gap it is the right one; above the first gap it is always the gap's, and the descriptor
 * is moved up. This takes two numbers that the program does not use, one for the pidfd and one to receive
 * into.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/cleanup.h"
#include "scip/fill/fill_batch.h"
#include "scip/object/epoll.h"
#include "scip/object/object.h"

static int compare_fds(const void *a, const void *b)
{
	const Pbeam__FillFd *x = *(const Pbeam__FillFd *const *)a, *y = *(const Pbeam__FillFd *const *)b;

	return x->fd < y->fd ? -1 : x->fd > y->fd;
}

/* Lists the saved descriptors in order of their numbers. Returns their count, or -errno. */
static int sort_wanted(const struct fill *fill, const Pbeam__FillFd ***out)
{
	const Pbeam__FillFd **wanted = calloc(fill->request->n_fds + 1, sizeof(*wanted));
	int n = 0;

	if (!wanted)
		return err_code(fill->err, -ENOMEM, "descriptors");
	for (size_t i = 0; i < fill->request->n_fds; i++)
		if (!fill->request->fds[i]->shared_id)
			wanted[n++] = fill->request->fds[i];
	bytes_sort(wanted, (size_t)n, sizeof(*wanted), compare_fds);
	for (int i = 0; i < n; i++)
		if (wanted[i]->fd < 0 || (i && wanted[i]->fd == wanted[i - 1]->fd)) {
			int fd = wanted[i]->fd;

			free(wanted);
			return err_set(fill->err, -EINVAL,
				       "descriptor number %d is invalid, or occurs twice in the image", fd);
		}
	*out = wanted;
	return n;
}

/* The lowest unused descriptor number that is at least `from`. */
static int lowest_free(const Pbeam__FillFd *const *wanted, int n, int from)
{
	for (int i = 0; i < n && wanted[i]->fd <= from; i++)
		if (wanted[i]->fd == from)
			from++;
	return from;
}

static int fetch_one(struct fill *fill, const Pbeam__FillFd *fd, int pidfd, int receive)
{
	int r = fill_reserve(fill, 3, 0), call;

	if (r < 0)
		return r;
	call = fill_call(fill, 0, SYS_pidfd_getfd, remote_args((uint64_t)pidfd, (uint64_t)fd->source, 0));
	if (call < 0)
		return call;
	if (fd->fd < receive) {
		fill_expect(fill, call, fd->fd);
		return fd->cloexec ? 0 : fill_do(fill, SYS_fcntl, remote_args((uint64_t)fd->fd, F_SETFD, 0));
	}
	fill_expect(fill, call, receive);
	r = fill_do(fill, SYS_dup3,
		    remote_args((uint64_t)receive, (uint64_t)fd->fd, fd->cloexec ? (uint64_t)O_CLOEXEC : 0));
	return r < 0 ? r : fill_do(fill, SYS_close, remote_args((uint64_t)receive));
}

static int fetch_all(struct fill *fill, const Pbeam__FillFd *const *wanted, int n)
{
	int pidfd = lowest_free(wanted, n, 0), receive = lowest_free(wanted, n, pidfd + 1);
	int r = fill_do(fill, SYS_close_range, remote_args(0, ~0u, 0)), call;

	if (r < 0 || n == 0)
		return r;
	call = fill_call(fill, 0, SYS_pidfd_open, remote_args((uint64_t)fill->request->coordinator_rpid, 0));
	if (call < 0)
		return call;
	fill_expect(fill, call, 0);
	if (pidfd != 0) {
		r = fill_do(fill, SYS_dup3, remote_args(0, (uint64_t)pidfd, O_CLOEXEC));
		if (r == 0)
			r = fill_do(fill, SYS_close, remote_args(0));
	}
	for (int i = 0; i < n && r == 0; i++)
		r = fetch_one(fill, wanted[i], pidfd, receive);
	return r < 0 ? r : fill_do(fill, SYS_close, remote_args((uint64_t)pidfd));
}

/* Restores the state of objects that only the process itself can set: record locks, a terminal's foreground
 * group. */
static int install_objects(struct fill *fill)
{
	size_t descriptors = fill->saved->n_descriptors, locks = fill->saved->n_locks, entries = 0;
	int r = fill_flush(fill);

	if (r < 0 || (fill->request->n_late == 0 && locks == 0))
		return r;
	for (size_t i = 0; i < fill->request->n_late; i++)
		entries += epoll_own_entries(fill->request->late[i], fill->saved->vpid);
	r = fill_reserve(fill, (int)(2 * descriptors + locks + entries) + 1,
			 (descriptors + locks + entries) * sizeof(struct flock));
	if (r == 0)
		r = object_install_all(fill->process->names, fill->request->late, fill->request->n_late,
				       fill->saved, fill->batch, fill->err);
	if (r == 0)
		fill->ncalls++;
	if (r == 0)
		r = fill_flush(fill);
	if ((r == -EAGAIN || r == -EACCES) && locks)
		return err_set(
			fill->err, r,
			"its record lock on a file that somebody else has locked now (in a migration over "
			"a path that both hosts share it is the program itself, on the host that it "
			"leaves): try again when it is unlocked");
	return r;
}

int fill_descriptors(struct fill *fill)
{
	auto_free const Pbeam__FillFd **wanted = NULL;
	struct rlimit limit, raised;
	int n = sort_wanted(fill, &wanted), r;

	if (n < 0)
		return n;
	if (prlimit(fill->process->pid, RLIMIT_NOFILE, NULL, &limit) == 0 &&
	    limit.rlim_cur < limit.rlim_max) {
		raised = (struct rlimit){limit.rlim_max, limit.rlim_max};
		if (prlimit(fill->process->pid, RLIMIT_NOFILE, &raised, NULL) < 0)
			return err_sys(fill->err, "raise the number of descriptors to %lu",
				       (unsigned long)raised.rlim_cur);
	}
	r = fetch_all(fill, wanted, n);
	return r < 0 ? r : install_objects(fill);
}
