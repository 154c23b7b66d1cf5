/*
 * Replaces open file descriptions under descriptor numbers of a frozen process. Runs in the process's scip.
 *
 * The process fetches each new descriptor from the reconnecting process (pidfd_getfd); then dup3() installs
 * it under every number, keeping the number's close-on-exec flag. Two free descriptors are needed meanwhile;
 * if the program has used up its limit, the limit is raised temporarily. All new descriptors are fetched
 * before the first is installed, so that errors occur while nothing has changed.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "scip/fill/fill.h"
#include "scip/tracee/procfs.h"
#include "scip/tracee/remote.h"

enum { FDINFO_MAX = 1 << 20 };

static int replace_call(struct tracee *tracee, struct err *err, int64_t nr, uint64_t a, uint64_t b,
			uint64_t c)
{
	int64_t ret = 0;
	int r = remote_call(tracee, &ret, err, nr, remote_args(a, b, c));

	return r < 0 ? r : (int)ret;
}

/* O_CLOEXEC or 0; -errno for a number that is not open. */
static int cloexec_of(pid_t pid, int fd)
{
	auto_free char *text = NULL;
	const char *flags;
	char path[64];
	int r;

	snprintf(path, sizeof(path), "/proc/%d/fdinfo/%d", pid, fd);
	r = io_slurp(AT_FDCWD, path, FDINFO_MAX, &text, NULL);
	if (r < 0)
		return r;
	flags = procfs_field(text, "flags");
	return flags && strtoul(flags, NULL, 8) & O_CLOEXEC ? O_CLOEXEC : 0;
}

static int take_all(struct tracee *tracee, const Pbeam__ScipReplace *request, int *taken, struct err *err)
{
	int pidfd = replace_call(tracee, err, SYS_pidfd_open, (uint64_t)request->from, 0, 0), r = 0;

	if (pidfd < 0)
		return err->code ? pidfd : err_code(err, pidfd, "open the process that reconnects");
	for (size_t i = 0; i < request->n_all && r == 0; i++) {
		taken[i] = replace_call(tracee, err, SYS_pidfd_getfd, (uint64_t)pidfd,
					(uint64_t)request->all[i]->source, 0);
		if (taken[i] < 0)
			r = err->code ? taken[i] : err_code(err, taken[i], "fetch a new connection");
	}
	if (replace_call(tracee, NULL, SYS_close, (uint64_t)pidfd, 0, 0) == -ESRCH)
		r = -ESRCH;
	return r;
}

static int place_descriptor(struct tracee *tracee, const Pbeam__ScipReplace__One *one, int taken,
			    struct err *err)
{
	for (size_t i = 0; i < one->n_fds; i++) {
		int cloexec = cloexec_of(tracee->process->pid, one->fds[i]);
		int r = cloexec < 0 ? cloexec
				    : replace_call(tracee, err, SYS_dup3, (uint64_t)taken,
						   (uint64_t)one->fds[i], (uint64_t)cloexec);

		if (r < 0)
			return err->code ? r
					 : err_code(err, r, "install a new connection as fd %d", one->fds[i]);
	}
	return 0;
}

static bool raise_descriptor_room(const struct process *process, size_t n, struct rlimit *old)
{
	struct rlimit raised;

	if (prlimit(process->pid, RLIMIT_NOFILE, NULL, old) < 0)
		return false;
	raised = (struct rlimit){old->rlim_cur + n + 1, old->rlim_max};
	if (raised.rlim_cur > raised.rlim_max)
		raised.rlim_cur = raised.rlim_max;
	return prlimit(process->pid, RLIMIT_NOFILE, &raised, NULL) == 0;
}

int fill_replace(struct process *process, const Pbeam__ScipReplace *request, struct err *err)
{
	struct tracee *tracee = process_leader(process);
	auto_free int *taken = malloc((request->n_all + 1) * sizeof(*taken));
	struct rlimit limit;
	bool raised;
	int r;

	if (!taken)
		return -ENOMEM;
	for (size_t i = 0; i < request->n_all; i++)
		taken[i] = -1;
	raised = raise_descriptor_room(process, request->n_all, &limit);
	r = take_all(tracee, request, taken, err);
	for (size_t i = 0; i < request->n_all && r == 0; i++)
		r = place_descriptor(tracee, request->all[i], taken[i], err);
	for (size_t i = 0; i < request->n_all; i++)
		if (taken[i] >= 0 &&
		    replace_call(tracee, NULL, SYS_close, (uint64_t)taken[i], 0, 0) == -ESRCH)
			r = -ESRCH;
	if (raised && prlimit(process->pid, RLIMIT_NOFILE, &limit, NULL) < 0 && r == 0)
		r = err_sys(err, "restore the limit of open files");
	return r;
}
