/* The kinds, in the order of their `match` calls. */
#include "scip/object/object_table.h"

#include <stddef.h>

const struct object_ops *const object_table[] = {
	&object_console, /* before what its streams are by nature */
	/* clang-format off: one a line */
	&object_eventfd,
	&object_timerfd,
	&object_signalfd,
	&object_epoll,
	&object_inotify,
	&object_pidfd, /* a regular file of its own file system since 6.9 */
	&object_proc_file,
	&object_path,
	&object_namespace_fd, /* a regular file of its own file system */
	&object_device,
	&object_tty,
	&object_pipe,
	&object_unix,
	&object_tcp,
	&object_udp,
	&object_netlink,
	&object_directory,
	&object_mqueue,
	&object_memfd, /* looks like an unlinked regular file */
	&object_regular,
	/* clang-format on */
	NULL,
};

void object_shift_none(Pbeam__Object *object, const struct object_shift *shift)
{
	(void)object;
	(void)shift;
}
