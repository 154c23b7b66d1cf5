/*
 * Netlink sockets: protocol, port, groups, options. An unread answer is refused, because the request cannot
 * be repeated for the program. Programs read it within moments.
 */
#include <errno.h>
#include <linux/netlink.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "scip/object/common.h"
#include "scip/object/object_table.h"
#include "scip/object/socket.h"

static bool netlink_match(struct object_dump *dump, const struct object_source *source)
{
	return socket_is(source, AF_NETLINK, 0);
}

static int netlink_dump(struct object_dump *dump, const struct object_source *source, Pbeam__Object *out,
			struct err *err)
{
	Pbeam__NetlinkSocket *netlink = object_message(Pbeam__NetlinkSocket, pbeam__netlink_socket__init);
	struct pollfd poll_fd = {.fd = source->local, .events = POLLIN};
	struct sockaddr_nl name = {.nl_pid = 0};
	socklen_t len = sizeof(name);

	out->netlink = netlink;
	if (!netlink)
		return object_no_memory(err);
	netlink->protocol = socket_option(source->local, SOL_SOCKET, SO_PROTOCOL, 0);
	if (getsockname(source->local, (struct sockaddr *)&name, &len) < 0)
		return err_sys(err, "a netlink socket whose address cannot be read");
	netlink->port = name.nl_pid;
	netlink->groups = name.nl_groups;
	if (poll(&poll_fd, 1, 0) > 0 && poll_fd.revents & POLLIN)
		return err_set(
			err, -EBUSY,
			"a netlink socket with an answer of the kernel that was not read yet; try again in "
			"a moment");
	return socket_options_dump(source->local, &netlink->options, err);
}

static int netlink_restore(struct object_restore *restore, const Pbeam__Object *object, int *fd,
			   struct err *err)
{
	const Pbeam__NetlinkSocket *saved = object->netlink;
	struct sockaddr_nl name = {
		.nl_family = AF_NETLINK, .nl_pid = saved->port, .nl_groups = saved->groups};
	int r;

	*fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, saved->protocol);
	if (*fd < 0)
		return err_sys(err, "make a netlink socket");
	if (saved->port || saved->groups) {
		r = bind(*fd, (struct sockaddr *)&name, sizeof(name));
		/* The port is usually the process's real pid: another process may have it now. */
		name.nl_pid = 0;
		if (r < 0 && errno == EADDRINUSE)
			r = bind(*fd, (struct sockaddr *)&name, sizeof(name));
		if (r < 0)
			return err_sys(err, "bind a netlink socket");
	}
	return socket_options_restore(saved->options, *fd, err);
}

/* A socket that is shared with the process that is replaced. */
static int netlink_take_over(struct object_restore *restore, const Pbeam__Object *object, int fd,
			     struct err *err)
{
	const Pbeam__NetlinkSocket *saved = object->netlink;
	struct sockaddr_nl name = {
		.nl_family = AF_NETLINK, .nl_pid = saved->port, .nl_groups = saved->groups};
	struct sockaddr_nl now = {.nl_pid = 0};
	socklen_t len = sizeof(now);

	if (getsockname(fd, (struct sockaddr *)&now, &len) < 0 || now.nl_pid != saved->port)
		return 0;
	while (recv(fd, NULL, 0, MSG_DONTWAIT | MSG_TRUNC) >= 0 || errno == ENOBUFS)
		;
	if (now.nl_groups != saved->groups && bind(fd, (struct sockaddr *)&name, sizeof(name)) < 0)
		return err_sys(err, "bind a netlink socket again");
	return socket_options_renew(saved->options, fd, err);
}

const struct object_ops object_netlink = {
	.name = "netlink socket",
	.kind = PBEAM__OBJECT__KIND_NETLINK,
	.phase = 1,
	.match = netlink_match,
	.dump = netlink_dump,
	.restore = netlink_restore,
	.take_over = netlink_take_over,
	.shift = object_shift_none,
};
