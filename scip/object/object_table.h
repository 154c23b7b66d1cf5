/* One for each kind's file. */
#ifndef SCIP_OBJECT_OBJECT_TABLE_H
#define SCIP_OBJECT_OBJECT_TABLE_H

#include "scip/object/object.h"

extern const struct object_ops object_console, object_device, object_directory, object_epoll, object_eventfd,
	object_inotify, object_memfd, object_mqueue, object_namespace_fd, object_netlink, object_path,
	object_pidfd, object_pipe, object_proc_file, object_regular, object_signalfd, object_tcp,
	object_timerfd, object_tty, object_udp, object_unix;

#endif
