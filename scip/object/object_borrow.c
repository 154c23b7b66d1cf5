/*
 * What the objects of a rollback need of the processes that they replace, which stand still and have it.
 *
 * A listening socket is the same open file description for both: there is no second bind, and nothing of it
 * changes before the commit. The clients that wait there then are reset, as they would be if the program had
 * ended. A UDP port is bound a second time, with SO_REUSEADDR on both sockets (the kernel reads the flag of
 * the bound one at each bind, and delivers to the socket bound last; Linux 6.18). A TCP connection between
 * processes of the image gets other ports and keeps the old ones as names if the old one exists still.
 * Whatever else has a name that the old processes have now is an obstacle: they end first.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/netlink.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/io.h"
#include "base/log.h"
#include "base/u64_map.h"
#include "scip/object/common.h"
#include "scip/object/inet.h"
#include "scip/object/object_end.h"
#include "scip/object/object_restore.h"
#include "scip/object/socket.h"
#include "scip/tracee/procfs.h"

/* A socket of the old processes that has a name. */
struct object_borrowed {
	int fd; /* duplicate */
	int family, type;
	bool listening, taken;
	int reuse; /* SO_REUSEADDR of a UDP socket as it was, -1 unchanged */
	socklen_t len;
	union {
		struct sockaddr any;
		struct sockaddr_un un;
		struct sockaddr_in6 v6;
		struct sockaddr_nl netlink;
		struct sockaddr_storage room;
	} name;
};

/* ---- finding them ---- */

struct gathering {
	struct object_restore *restore;
	bool sockets, locks; /* what is looked for */
	struct u64_map seen;
	int pid, pidfd;
	int process_fds; /* /proc/PID/fd */
};

static int socket_int(int fd, int name)
{
	int value = -1;
	socklen_t len = sizeof(value);

	return getsockopt(fd, SOL_SOCKET, name, &value, &len) < 0 ? -1 : value;
}

static bool has_name(const struct object_borrowed *socket)
{
	struct inet_address address = {.len = socket->len};

	switch (socket->family) {
	case AF_UNIX:
		return socket->len > offsetof(struct sockaddr_un, sun_path);
	case AF_INET:
	case AF_INET6:
		memcpy(&address.v6, &socket->name.v6, sizeof(address.v6));
		return inet_port(&address) != 0;
	default:
		return socket->family == AF_NETLINK;
	}
}

/* Takes `fd`. */
static int add_borrowed(struct object_restore *restore, int fd)
{
	struct object_borrowed one = {.fd = fd, .reuse = -1, .len = sizeof(one.name)}, *more;

	one.family = socket_int(fd, SO_DOMAIN);
	one.type = socket_int(fd, SO_TYPE);
	one.listening = socket_int(fd, SO_ACCEPTCONN) == 1;
	if (getsockname(fd, &one.name.any, &one.len) < 0 || !has_name(&one)) {
		close(fd);
		return 0;
	}
	more = reallocarray(restore->borrowed, restore->nborrowed + 1, sizeof(*more));
	if (!more) {
		close(fd);
		return -ENOMEM;
	}
	restore->borrowed = more;
	more[restore->nborrowed++] = one;
	return 0;
}

static int look_at_fd(int number, void *arg)
{
	struct gathering *gathering = arg;
	char name[16], link[64];
	unsigned long long ino;
	int fd, r;

	snprintf(name, sizeof(name), "%d", number);
	r = io_readlink(gathering->process_fds, name, link, sizeof(link));
	if (gathering->locks && (r < 0 || link[0] == '/')) /* a long path does not fit */
		return object_locks_gather(gathering->restore, gathering->pid, gathering->pidfd, number);
	if (r < 0 || !gathering->sockets || sscanf(link, "socket:[%llu]", &ino) != 1 ||
	    u64_map_find(&gathering->seen, ino) != U64_MAP_NONE)
		return 0;
	r = u64_map_set(&gathering->seen, ino, 0);
	if (r < 0)
		return r;
	fd = (int)syscall(SYS_pidfd_getfd, gathering->pidfd, number, 0);
	return fd < 0 ? -errno : add_borrowed(gathering->restore, fd);
}

static int look_at_process(struct gathering *gathering, pid_t pid)
{
	char path[64];
	int r;

	snprintf(path, sizeof(path), "/proc/%d/fd", pid);
	gathering->pid = pid;
	gathering->pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
	gathering->process_fds = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	r = gathering->pidfd < 0 || gathering->process_fds < 0
		    ? -errno
		    : procfs_each_number(path, look_at_fd, gathering);
	if (gathering->pidfd >= 0)
		close(gathering->pidfd);
	if (gathering->process_fds >= 0)
		close(gathering->process_fds);
	return r;
}

/* True if an object of the image has a name that another one may have as well. */
static bool socket_is_named(const Pbeam__Object *object)
{
	if (object->kind_case == PBEAM__OBJECT__KIND_TCP)
		return object->tcp->bound;
	if (object->kind_case == PBEAM__OBJECT__KIND_UDP)
		return object->udp->bound;
	if (object->kind_case == PBEAM__OBJECT__KIND_UNIX_SOCKET)
		return object->unix_socket->name.len > offsetof(struct sockaddr_un, sun_path);
	return object->kind_case == PBEAM__OBJECT__KIND_NETLINK;
}

static int gather(struct object_restore *restore, const struct rpid *rpids, size_t n, struct err *err)
{
	struct gathering gathering = {.restore = restore, .locks = object_locks_saved(restore->manifest)};
	int r = 0;

	for (size_t i = 0; i < restore->nslots; i++)
		gathering.sockets = gathering.sockets || socket_is_named(restore->slots[i].object);
	restore->replaced = calloc(n + 1, sizeof(*restore->replaced));
	if (!restore->replaced)
		return object_no_memory(err);
	for (size_t i = 0; i < n; i++)
		restore->replaced[restore->nreplaced++] = rpids[i];
	for (size_t i = 0; i < n && r == 0 && (gathering.sockets || gathering.locks); i++)
		r = look_at_process(&gathering, rpids[i].n);
	u64_map_free(&gathering.seen);
	return r < 0 ? err_code(err, r, "look at the descriptors of the processes that are replaced") : 0;
}

/* ---- what is done about each ---- */

static struct inet_address inet_name(const struct object_borrowed *socket)
{
	struct inet_address address = {.len = socket->len};

	memcpy(&address.v6, &socket->name.v6, sizeof(address.v6));
	return address;
}

static bool is_inet(const struct object_borrowed *socket, int type)
{
	return (socket->family == AF_INET || socket->family == AF_INET6) && socket->type == type;
}

/* Two sockets of one port may exclude each other, whatever their addresses are. */
static struct object_borrowed *find_port(const struct object_restore *restore, int type,
					 const struct inet_address *address)
{
	for (size_t i = 0; i < restore->nborrowed; i++) {
		struct inet_address name = inet_name(&restore->borrowed[i]);

		if (is_inet(&restore->borrowed[i], type) && inet_port(&name) == inet_port(address))
			return &restore->borrowed[i];
	}
	return NULL;
}

bool object_restore_is_taken(const struct object_restore *restore, const struct inet_address *address)
{
	return find_port(restore, SOCK_STREAM, address) != NULL;
}

static bool waits_to_be_accepted(const struct object_restore *restore, uint64_t ino)
{
	for (size_t i = 0; i < restore->nslots; i++) {
		const Pbeam__Object *object = restore->slots[i].object;

		if ((object->kind_case == PBEAM__OBJECT__KIND_TCP && object->tcp->accept_of == ino) ||
		    (object->kind_case == PBEAM__OBJECT__KIND_UNIX_SOCKET &&
		     (object->unix_socket->accept_of == ino)))
			return true;
	}
	return false;
}

/* In a cluster a bound socket has a name, which other hosts find it by. It is its address, or another one if
 * it has come from another host. */
static struct inet_address find_name(const struct object_restore *restore,
				     const struct object_borrowed *socket)
{
	struct inet_address name = inet_name(socket);
	struct name_socket known;
	struct stat st;

	if (fstat(socket->fd, &st) == 0 && names_socket_get(restore->names, st.st_ino, &known) == 0 &&
	    known.own.sa.sa_family)
		memcpy(&name.v6, &known.own, sizeof(name.v6));
	return name;
}

static bool has_saved_name(const struct object_restore *restore, const struct object_borrowed *socket,
			   const Pbeam__TcpSocket *saved)
{
	struct inet_address name = find_name(restore, socket), wanted;

	return inet_address_parse(saved->name_own.len ? &saved->name_own : &saved->local, &wanted) &&
	       inet_same(&name, &wanted);
}

/* True if an old socket has this address as its name alone: a bridge of it may have the address itself. */
static bool is_name_of_bridge(const struct object_restore *restore, int type,
			      const struct inet_address *address)
{
	for (size_t i = 0; i < restore->nborrowed; i++) {
		struct inet_address name = find_name(restore, &restore->borrowed[i]);

		if (is_inet(&restore->borrowed[i], type) && inet_same(&name, address))
			return true;
	}
	return false;
}

/* The object is this description. */
static const char *share(struct object_slot *slot, struct object_borrowed *socket)
{
	slot->fd = fcntl(socket->fd, F_DUPFD_CLOEXEC, 3);
	if (slot->fd < 0)
		return "a socket for which there is no descriptor left";
	slot->state = OBJECT_MADE;
	slot->shared = socket->taken = true;
	return NULL;
}

/* Shares a socket that was bound, and neither listened nor connected, if it is as it was. */
static bool share_idle(struct object_restore *restore, struct object_slot *slot,
		       const struct inet_address *local)
{
	for (size_t i = 0; i < restore->nborrowed; i++) {
		struct object_borrowed *socket = &restore->borrowed[i];
		struct inet_address name = inet_name(socket);
		struct tcp_info info = {.tcpi_state = 0};
		socklen_t len = sizeof(info);

		if (is_inet(socket, SOCK_STREAM) && !socket->taken &&
		    socket->family == slot->object->tcp->family && inet_same(&name, local) &&
		    has_saved_name(restore, socket, slot->object->tcp) &&
		    getsockopt(socket->fd, IPPROTO_TCP, TCP_INFO, &info, &len) == 0 &&
		    info.tcpi_state == TCP_CLOSE)
			return share(slot, socket) == NULL;
	}
	return false;
}

static const char *borrow_tcp(struct object_restore *restore, struct object_slot *slot)
{
	const Pbeam__TcpSocket *saved = slot->object->tcp;
	struct object_borrowed *found;
	struct inet_address local;

	if (!inet_address_parse(&saved->local, &local))
		return NULL;
	if (!find_port(restore, SOCK_STREAM, &local))
		return saved->listening && is_name_of_bridge(restore, SOCK_STREAM, &local)
			       ? "the port of a listening socket (a bridge to where the program was has it)"
			       : NULL;
	if (saved->state == TCP_CLOSE && !saved->shutdown && !saved->accept_of &&
	    share_idle(restore, slot, &local))
		return NULL;
	if (!saved->listening)
		return saved->state == TCP_CLOSE && !saved->shutdown && !saved->accept_of
			       ? "the port of a bound TCP socket"
			       : NULL;
	for (size_t i = 0; i < restore->nborrowed; i++) {
		struct inet_address name;

		found = &restore->borrowed[i];
		name = inet_name(found);
		if (is_inet(found, SOCK_STREAM) && found->listening && !found->taken &&
		    found->family == saved->family && inet_same(&name, &local) &&
		    has_saved_name(restore, found, saved))
			return share(slot, found);
	}
	return "the port of a listening socket, which it has in another way now";
}

static const char *borrow_udp(struct object_restore *restore, const Pbeam__UdpSocket *saved)
{
	struct inet_address local;
	int on = 1;

	if (!inet_address_parse(&saved->local, &local))
		return NULL;
	if (!find_port(restore, SOCK_DGRAM, &local))
		return is_name_of_bridge(restore, SOCK_DGRAM, &local)
			       ? "a UDP port (a bridge to where the program was has it)"
			       : NULL;
	for (size_t i = 0; i < restore->nborrowed; i++) {
		struct object_borrowed *socket = &restore->borrowed[i];

		if (!is_inet(socket, SOCK_DGRAM) || socket->reuse >= 0)
			continue;
		socket->reuse = socket_int(socket->fd, SO_REUSEADDR);
		if (setsockopt(socket->fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) < 0)
			return "the port of a UDP socket, which cannot be shared";
	}
	return NULL;
}

static bool same_unix_name(const struct object_borrowed *socket, const ProtobufCBinaryData *name)
{
	return socket->family == AF_UNIX && socket->len == name->len &&
	       bytes_equal((const uint8_t *)&socket->name, name->data, name->len);
}

bool object_restore_has_unix_name(const struct object_restore *restore, const ProtobufCBinaryData *name)
{
	for (size_t i = 0; i < restore->nborrowed; i++)
		if (same_unix_name(&restore->borrowed[i], name))
			return true;
	return false;
}

/* True if a connection must be accepted from the listener again. */
static bool is_called(const struct object_restore *restore, const Pbeam__UnixSocket *listener)
{
	for (size_t i = 0; i < restore->nslots; i++) {
		const Pbeam__UnixSocket *other = restore->slots[i].object->unix_socket;

		if (restore->slots[i].object->kind_case == PBEAM__OBJECT__KIND_UNIX_SOCKET &&
		    other != listener && other->name.len == listener->name.len &&
		    bytes_equal(other->name.data, listener->name.data, other->name.len))
			return true;
	}
	return waits_to_be_accepted(restore, listener->ino);
}

static bool is_at_its_path(const Pbeam__UnixSocket *saved)
{
	auto_free char *path = saved->bound_file ? object_text(&saved->bound_file->path) : NULL;
	struct stat st;

	return !saved->bound_file ||
	       (path && !saved->bound_file->deleted && lstat(path, &st) == 0 && S_ISSOCK(st.st_mode) &&
		st.st_dev == saved->bound_file->dev && st.st_ino == saved->bound_file->ino);
}

static const char *borrow_unix(struct object_restore *restore, struct object_slot *slot)
{
	const Pbeam__UnixSocket *saved = slot->object->unix_socket;
	bool abstract = false;

	for (size_t i = 0; i < restore->nborrowed; i++) {
		struct object_borrowed *socket = &restore->borrowed[i];

		if (!same_unix_name(socket, &saved->name))
			continue;
		if (saved->listening && socket->listening && !socket->taken &&
		    socket->type == (int)saved->type && !is_called(restore, saved) && is_at_its_path(saved))
			return share(slot, socket);
		abstract = abstract || !saved->name.data[offsetof(struct sockaddr_un, sun_path)];
	}
	/* One with a path is bound beside: unix_aside.c. */
	return abstract ? "the abstract name of a UNIX socket" : NULL;
}

/* A port is the process's real number mostly, which the new process does not have: the socket is shared. */
static const char *borrow_netlink(struct object_restore *restore, struct object_slot *slot)
{
	const Pbeam__NetlinkSocket *saved = slot->object->netlink;

	for (size_t i = 0; i < restore->nborrowed; i++) {
		struct object_borrowed *socket = &restore->borrowed[i];

		if (socket->family == AF_NETLINK && !socket->taken && socket->name.netlink.nl_pid &&
		    socket->name.netlink.nl_pid == saved->port &&
		    socket_int(socket->fd, SO_PROTOCOL) == (int)saved->protocol)
			return share(slot, socket);
	}
	return NULL;
}

static const char *borrow_object(struct object_restore *restore, struct object_slot *slot)
{
	const Pbeam__Object *object = slot->object;

	if (object->lease)
		return "its lease of a file";
	object_locks_share(restore, slot);
	if (!socket_is_named(object))
		return NULL;
	if (object->kind_case == PBEAM__OBJECT__KIND_TCP)
		return borrow_tcp(restore, slot);
	if (object->kind_case == PBEAM__OBJECT__KIND_UDP)
		return borrow_udp(restore, object->udp);
	return object->kind_case == PBEAM__OBJECT__KIND_NETLINK ? borrow_netlink(restore, slot)
								: borrow_unix(restore, slot);
}

int object_restore_borrow(struct object_restore *restore, const struct rpid *rpids, size_t n,
			  const char **obstacle, struct err *err)
{
	int r = gather(restore, rpids, n, err);

	for (size_t i = 0; i < restore->nslots && r == 0 && !*obstacle; i++)
		*obstacle = borrow_object(restore, &restore->slots[i]);
	/* Other programs may have the pages: were the old processes ended first, the new pipes could still
	 * fail. */
	if (r == 0 && !*obstacle && !object_pipes_have_room(restore))
		r = err_set(
			err, -ENOMEM,
			"fs.pipe-user-pages-soft does not allow the pipes of the image beside those that are "
			"there now; raise it, end other programs, or use --replace, which ends these "
			"processes "
			"first");
	restore->beside = r == 0 && !*obstacle;
	if (!restore->beside)
		object_restore_give_back(restore);
	return r;
}

/* ---- the end ---- */

static void forget_borrowed(struct object_restore *restore, bool give_back)
{
	for (size_t i = 0; i < restore->nborrowed; i++) {
		const struct object_borrowed *socket = &restore->borrowed[i];

		if (give_back && socket->reuse >= 0)
			(void)!setsockopt(socket->fd, SOL_SOCKET, SO_REUSEADDR, &socket->reuse,
					  sizeof(socket->reuse));
		if (socket->fd >= 0)
			close(socket->fd);
	}
	free(restore->borrowed);
	restore->borrowed = NULL;
	restore->nborrowed = 0;
	object_locks_forget(restore);
	free(restore->replaced);
	restore->replaced = NULL;
	restore->nreplaced = 0;
}

void object_restore_give_back(struct object_restore *restore)
{
	for (size_t i = 0; i < restore->nslots; i++) {
		struct object_slot *slot = &restore->slots[i];

		if (!slot->shared)
			continue;
		close(slot->fd);
		slot->fd = -1;
		slot->shared = false;
		slot->state = OBJECT_ABSENT;
	}
	unix_aside_end(restore, false);
	forget_borrowed(restore, true);
	restore->beside = false;
}

/* Resets the clients that called the old program. */
static void reset_clients(int listener)
{
	const struct linger reset = {.l_onoff = 1, .l_linger = 0};
	struct pollfd poll_fd = {.fd = listener, .events = POLLIN};

	while (poll(&poll_fd, 1, 0) == 1) {
		int client = accept4(listener, NULL, NULL, SOCK_CLOEXEC);

		if (client < 0)
			return;
		(void)!setsockopt(client, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
		close(client);
	}
}

/* A socket that listens, or a TCP socket that is bound and no more. */
static int take_over_socket(struct object_restore *restore, const struct object_slot *slot, struct err *err)
{
	const Pbeam__Object *object = slot->object;
	const bool tcp = object->kind_case == PBEAM__OBJECT__KIND_TCP;

	if (socket_int(slot->fd, SO_ACCEPTCONN) == 1) {
		reset_clients(slot->fd);
		if (listen(slot->fd, (int)(tcp ? object->tcp->backlog : object->unix_socket->backlog)) < 0)
			return err_sys(err, "listen again");
	}
	return socket_options_renew(tcp ? object->tcp->options : object->unix_socket->options, slot->fd, err);
}

static void take_port_alone(const struct object_slot *slot)
{
	const Pbeam__UdpSocket *saved = slot->object->udp;
	const int off = 0;
	struct err err = ERR_INIT;

	(void)!setsockopt(slot->fd, SOL_SOCKET, SO_REUSEADDR, &off, sizeof(off));
	if (socket_options_restore(saved->options, slot->fd, &err) < 0)
		log_warn("restore: %s", err.text);
}

/* Other hosts find the new socket from now on. */
static void renew_slot_address(struct object_restore *restore, const struct object_slot *slot)
{
	const Pbeam__Object *object = slot->object;
	const bool tcp =
		object->kind_case == PBEAM__OBJECT__KIND_TCP && (object->tcp->listening || slot->shared);

	if (slot->fd >= 0 && (tcp || object->kind_case == PBEAM__OBJECT__KIND_UDP))
		object_renew_address(restore, object, slot->fd);
}

static int take_over_shared(struct object_restore *restore, struct object_slot *slot, struct err *err)
{
	const Pbeam__Object *object = slot->object;

	renew_slot_address(restore, slot);
	if (object->kind_case == PBEAM__OBJECT__KIND_UDP && object->udp->bound && restore->nborrowed)
		take_port_alone(slot);
	return slot->shared && (object->kind_case == PBEAM__OBJECT__KIND_TCP ||
				object->kind_case == PBEAM__OBJECT__KIND_UNIX_SOCKET)
		       ? take_over_socket(restore, slot, err)
		       : 0;
}

static int take_over_rest(struct object_restore *restore, struct object_slot *slot, struct err *err)
{
	int r = slot->ops->take_over && !slot->object->external
			? slot->ops->take_over(restore, slot->object, slot->fd, err)
			: 0;

	return r == 0 && slot->shared ? object_restore_set_state(restore, slot, err) : r;
}

typedef int take_over_step(struct object_restore *restore, struct object_slot *slot, struct err *err);

static int take_over_each(struct object_restore *restore, take_over_step *step, struct err *err)
{
	int r = 0;

	for (size_t i = 0; i < restore->nslots; i++) {
		struct object_slot *slot = &restore->slots[i];

		if (step(restore, slot, err) == 0)
			continue;
		r = object_restore_name_error(restore, slot, err->code, err);
		log_error("restore: %s", err->text);
		err_clear(err);
	}
	return r;
}

/* The old sockets end with the last descriptor, and keep their ports until then. */
static void close_borrowed(struct object_restore *restore)
{
	for (size_t i = 0; i < restore->nborrowed; i++) {
		close(restore->borrowed[i].fd);
		restore->borrowed[i].fd = -1;
	}
}

/* The sockets that listen first: clients of the image call them. */
int object_restore_take_over(struct object_restore *restore, struct err *err)
{
	int locks = object_locks_take(restore, err);

	close_borrowed(restore);

	int shared = take_over_each(restore, take_over_shared, err);
	int rest = take_over_each(restore, take_over_rest, err);

	for (size_t i = 0; i < restore->nslots; i++)
		restore->slots[i].shared = false;
	unix_aside_end(restore, true);
	forget_borrowed(restore, false);
	return locks < 0 ? locks : shared < 0 ? shared : rest;
}
