/* signalfd: the mask. The signals themselves are pending in the process. */
#include <errno.h>
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "scip/object/common.h"
#include "scip/object/object_table.h"

static bool signalfd_match(struct object_dump *dump, const struct object_source *source)
{
	return strcmp(source->link, "anon_inode:[signalfd]") == 0;
}

static int signalfd_dump(struct object_dump *dump, const struct object_source *source, Pbeam__Object *out,
			 struct err *err)
{
	out->signalfd = object_message(Pbeam__SignalFd, pbeam__signal_fd__init);
	if (!out->signalfd)
		return object_no_memory(err);
	if (!strstr(source->fdinfo, "sigmask:"))
		return err_set(err, -ENOTSUP, "a signalfd whose mask this kernel does not report");
	out->signalfd->mask = object_fdinfo_number(source->fdinfo, "sigmask", 16, 0);
	return 0;
}

static int signalfd_restore(struct object_restore *restore, const Pbeam__Object *object, int *fd,
			    struct err *err)
{
	uint64_t mask = object->signalfd->mask;

	*fd = (int)syscall(SYS_signalfd4, -1, &mask, sizeof(mask), O_CLOEXEC | O_NONBLOCK);
	return *fd < 0 ? err_sys(err, "make a signalfd") : 0;
}

const struct object_ops object_signalfd = {
	.name = "signalfd",
	.kind = PBEAM__OBJECT__KIND_SIGNALFD,
	.phase = 1,
	.match = signalfd_match,
	.dump = signalfd_dump,
	.restore = signalfd_restore,
	.shift = object_shift_none,
};
