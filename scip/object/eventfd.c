/* eventfd: count and semaphore mode, both in fdinfo (eventfd-semaphore since 6.1). */
#include <errno.h>
#include <fcntl.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/io.h"
#include "scip/object/common.h"
#include "scip/object/object_table.h"

static bool eventfd_match(struct object_dump *dump, const struct object_source *source)
{
	return strcmp(source->link, "anon_inode:[eventfd]") == 0;
}

static int eventfd_dump(struct object_dump *dump, const struct object_source *source, Pbeam__Object *out,
			struct err *err)
{
	out->eventfd = object_message(Pbeam__EventFd, pbeam__event_fd__init);
	if (!out->eventfd)
		return object_no_memory(err);
	if (!strstr(source->fdinfo, "eventfd-count:"))
		return err_set(err, -ENOTSUP, "an eventfd whose count this kernel does not report");
	out->eventfd->count = object_fdinfo_number(source->fdinfo, "eventfd-count", 16, 0);
	out->eventfd->semaphore = object_fdinfo_number(source->fdinfo, "eventfd-semaphore", 10, 0) != 0;
	return 0;
}

static int eventfd_restore(struct object_restore *restore, const Pbeam__Object *object, int *fd,
			   struct err *err)
{
	uint64_t count = object->eventfd->count;
	int r = 0;

	*fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK | (object->eventfd->semaphore ? EFD_SEMAPHORE : 0));
	if (*fd < 0)
		return err_sys(err, "make an eventfd");
	/* One write adds at most 2^64 - 2, which is also the highest count that a program can make. */
	if (count == UINT64_MAX)
		count--;
	if (count)
		r = io_write_full(*fd, &count, sizeof(count));
	return r < 0 ? err_code(err, r, "set an eventfd's count") : 0;
}

const struct object_ops object_eventfd = {
	.name = "eventfd",
	.kind = PBEAM__OBJECT__KIND_EVENTFD,
	.phase = 1,
	.match = eventfd_match,
	.dump = eventfd_dump,
	.restore = eventfd_restore,
	.shift = object_shift_none,
};
