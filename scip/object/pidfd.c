/*
 * pidfds: the virtual number of the process, from fdinfo. One of a process that has ended (Pid -1) becomes
 * one of a child of ours that has. PIDFD_THREAD shows as O_EXCL in the flags.
 */
#include <errno.h>
#include <fcntl.h>
#include <sys/pidfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "scip/object/common.h"
#include "scip/object/object_table.h"

static bool pidfd_match(struct object_dump *dump, const struct object_source *source)
{
	return strcmp(source->link, "anon_inode:[pidfd]") == 0;
}

pid_t object_pidfd_process(const struct object_source *source)
{
	int pid = pidfd_match(NULL, source) ? (int)object_fdinfo_number(source->fdinfo, "Pid", 10, 0) : 0;

	return pid > 0 ? pid : 0;
}

static int pidfd_dump(struct object_dump *dump, const struct object_source *source, Pbeam__Object *out,
		      struct err *err)
{
	int pid = (int)object_fdinfo_number(source->fdinfo, "Pid", 10, 0);

	out->pidfd = object_message(Pbeam__PidFd, pbeam__pid_fd__init);
	if (!out->pidfd)
		return object_no_memory(err);
	if (pid == 0)
		return err_set(err, -ENOTSUP,
			       "a pidfd of a process in another pid namespace; close it first");
	out->pidfd->vpid = pid < 0 ? -1 : names_virtual(object_dump_names(dump), (struct rpid){pid}).n;
	return 0;
}

static int pidfd_make_ended(struct err *err)
{
	pid_t child = fork();
	int fd;

	if (child < 0)
		return err_sys(err, "fork for a pidfd");
	if (child == 0)
		_exit(0);
	fd = pidfd_open(child, 0);
	while (waitpid(child, NULL, 0) < 0 && errno == EINTR)
		;
	return fd < 0 ? err_sys(err, "open a pidfd") : fd;
}

static int pidfd_restore(struct object_restore *restore, const Pbeam__Object *object, int *fd,
			 struct err *err)
{
	struct rpid real = {-1};

	if (object->pidfd->vpid > 0)
		real = names_real(object_restore_names(restore), (struct vpid){object->pidfd->vpid});
	*fd = real.n > 0 ? pidfd_open(real.n, object->flags & O_EXCL) : -1;
	if (*fd < 0 && real.n > 0 && errno != ESRCH)
		return err_sys(err, "open a pidfd of vpid %d", object->pidfd->vpid);
	if (*fd < 0)
		*fd = pidfd_make_ended(err);
	return *fd < 0 ? *fd : 0;
}

const struct object_ops object_pidfd = {
	.name = "pidfd",
	.kind = PBEAM__OBJECT__KIND_PIDFD,
	.phase = 1,
	.late = true,
	.match = pidfd_match,
	.dump = pidfd_dump,
	.restore = pidfd_restore,
	.shift = object_shift_none,
};
