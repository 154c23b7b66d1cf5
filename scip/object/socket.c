#include "scip/object/socket.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "proto/message.h"
#include "scip/object/common.h"

#ifndef SO_BUF_LOCK
#define SO_BUF_LOCK 72
#endif
#ifndef SO_PASSPIDFD
#define SO_PASSPIDFD 76
#endif
#define PASSED_MAX  253 /* SCM_MAX_FD */
#define PIECE_FIRST (256u << 10)
#define PIECE_MAX   (64u << 20)

/* Buffer sizes come last but one: the lock that setting them sets is put right after them. */
static const struct {
	int level, name;
} options[] = {
	{SOL_SOCKET, SO_REUSEADDR},
	{SOL_SOCKET, SO_REUSEPORT},
	{SOL_SOCKET, SO_KEEPALIVE},
	{SOL_SOCKET, SO_BROADCAST},
	{SOL_SOCKET, SO_LINGER},
	{SOL_SOCKET, SO_PRIORITY},
	{SOL_SOCKET, SO_OOBINLINE},
	{SOL_SOCKET, SO_DONTROUTE},
	{SOL_SOCKET, SO_RCVLOWAT},
	{SOL_SOCKET, SO_RCVTIMEO},
	{SOL_SOCKET, SO_SNDTIMEO},
	{SOL_SOCKET, SO_PASSCRED},
	{SOL_SOCKET, SO_PASSSEC},
	{SOL_SOCKET, SO_PASSPIDFD},
	{SOL_SOCKET, SO_TIMESTAMP},
	{SOL_SOCKET, SO_TIMESTAMPNS},
	{SOL_SOCKET, SO_TIMESTAMPING},
	{SOL_SOCKET, SO_BINDTODEVICE},
	{SOL_SOCKET, SO_MARK},
	{SOL_SOCKET, SO_RXQ_OVFL},
	{SOL_SOCKET, SO_PEEK_OFF},
	{SOL_SOCKET, SO_ZEROCOPY},
	{SOL_SOCKET, SO_MAX_PACING_RATE},
	{SOL_SOCKET, SO_BUSY_POLL},
	{IPPROTO_IP, IP_TOS},
	{IPPROTO_IP, IP_TTL},
	{IPPROTO_IP, IP_MTU_DISCOVER},
	{IPPROTO_IP, IP_RECVERR},
	{IPPROTO_IP, IP_PKTINFO},
	{IPPROTO_IP, IP_RECVTTL},
	{IPPROTO_IP, IP_RECVTOS},
	{IPPROTO_IP, IP_RECVORIGDSTADDR},
	{IPPROTO_IP, IP_FREEBIND},
	{IPPROTO_IP, IP_TRANSPARENT},
	{IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT},
	{IPPROTO_IP, IP_MULTICAST_TTL},
	{IPPROTO_IP, IP_MULTICAST_LOOP},
	{IPPROTO_IP, IP_MULTICAST_IF},
	{IPPROTO_IP, IP_MULTICAST_ALL},
	{IPPROTO_IPV6, IPV6_V6ONLY},
	{IPPROTO_IPV6, IPV6_UNICAST_HOPS},
	{IPPROTO_IPV6, IPV6_MULTICAST_HOPS},
	{IPPROTO_IPV6, IPV6_MULTICAST_LOOP},
	{IPPROTO_IPV6, IPV6_MULTICAST_IF},
	{IPPROTO_IPV6, IPV6_MULTICAST_ALL},
	{IPPROTO_IPV6, IPV6_MTU_DISCOVER},
	{IPPROTO_IPV6, IPV6_RECVERR},
	{IPPROTO_IPV6, IPV6_RECVPKTINFO},
	{IPPROTO_IPV6, IPV6_RECVHOPLIMIT},
	{IPPROTO_IPV6, IPV6_TCLASS},
	{IPPROTO_IPV6, IPV6_RECVTCLASS},
	{IPPROTO_TCP, TCP_NODELAY},
	{IPPROTO_TCP, TCP_CORK},
	{IPPROTO_TCP, TCP_KEEPIDLE},
	{IPPROTO_TCP, TCP_KEEPINTVL},
	{IPPROTO_TCP, TCP_KEEPCNT},
	{IPPROTO_TCP, TCP_SYNCNT},
	{IPPROTO_TCP, TCP_LINGER2},
	{IPPROTO_TCP, TCP_DEFER_ACCEPT},
	{IPPROTO_TCP, TCP_USER_TIMEOUT},
	{IPPROTO_TCP, TCP_CONGESTION},
	{IPPROTO_TCP, TCP_FASTOPEN},
	{IPPROTO_TCP, TCP_NOTSENT_LOWAT},
	{IPPROTO_TCP, TCP_INQ},
	{SOL_SOCKET, SO_SNDBUF},
	{SOL_SOCKET, SO_RCVBUF},
	{SOL_SOCKET, SO_BUF_LOCK},
};

int socket_option(int fd, int level, int name, int fallback)
{
	int value = fallback;
	socklen_t len = sizeof(value);

	return getsockopt(fd, level, name, &value, &len) == 0 ? value : fallback;
}

bool socket_is(const struct object_source *source, int domain, int type)
{
	return S_ISSOCK(source->st.st_mode) &&
	       socket_option(source->local, SOL_SOCKET, SO_DOMAIN, -1) == domain &&
	       (type == 0 || socket_option(source->local, SOL_SOCKET, SO_TYPE, -1) == type);
}

static int add_option(Pbeam__SocketOptions *list, int level, int name, const void *value, size_t len,
		      struct err *err)
{
	Pbeam__SocketOption *option = object_message(Pbeam__SocketOption, pbeam__socket_option__init);

	if (!option || object_append(list->options, list->n_options, option) < 0) {
		free(option);
		return object_no_memory(err);
	}
	option->level = level;
	option->name = name;
	return object_set_bytes(&option->value, value, len, err);
}

/* A classic filter can be read back; its length is in instructions. */
static int dump_filter(int fd, Pbeam__SocketOptions *list, struct err *err)
{
	socklen_t n = 0;
	auto_free struct sock_filter *filter = NULL;

	if (getsockopt(fd, SOL_SOCKET, SO_GET_FILTER, NULL, &n) < 0) {
		if (errno == EACCES)
			return err_set(err, -ENOTSUP,
				       "a socket with an eBPF filter, which cannot be read; detach it first");
		return 0;
	}
	if (n == 0)
		return 0;
	filter = calloc(n, sizeof(*filter));
	if (!filter)
		return object_no_memory(err);
	if (getsockopt(fd, SOL_SOCKET, SO_GET_FILTER, filter, &n) < 0)
		return err_sys(err, "a socket whose filter cannot be read");
	return add_option(list, SOL_SOCKET, SO_ATTACH_FILTER, filter, n * sizeof(*filter), err);
}

int socket_options_dump(int fd, Pbeam__SocketOptions **out, struct err *err)
{
	auto_close int fresh = socket(socket_option(fd, SOL_SOCKET, SO_DOMAIN, AF_UNIX),
				      socket_option(fd, SOL_SOCKET, SO_TYPE, SOCK_STREAM) | SOCK_CLOEXEC,
				      socket_option(fd, SOL_SOCKET, SO_PROTOCOL, 0));
	bool stream = socket_option(fd, SOL_SOCKET, SO_PROTOCOL, 0) == IPPROTO_TCP;
	int lock = socket_option(fd, SOL_SOCKET, SO_BUF_LOCK, 0);
	Pbeam__SocketOptions *list = object_message(Pbeam__SocketOptions, pbeam__socket_options__init);

	*out = list;
	if (!list)
		return object_no_memory(err);
	for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i++) {
		char value[64] = {0}, usual[64] = {0};
		socklen_t len = sizeof(value), usual_len = sizeof(usual);
		int level = options[i].level, name = options[i].name, r;

		if (getsockopt(fd, level, name, value, &len) < 0)
			continue;
		/* Of a stream not settable, and not the same in an accepted socket as in a fresh one. */
		if (stream &&
		    ((level == IPPROTO_IP && (name == IP_MULTICAST_TTL || name == IP_MULTICAST_LOOP ||
					      name == IP_MULTICAST_IF || name == IP_MULTICAST_ALL)) ||
		     (level == IPPROTO_IPV6 && (name == IPV6_MULTICAST_HOPS || name == IPV6_MULTICAST_LOOP ||
						name == IPV6_MULTICAST_IF || name == IPV6_MULTICAST_ALL))))
			continue;
		/* TCP sizes its buffers itself unless it was told. */
		if (level == SOL_SOCKET && ((name == SO_SNDBUF && stream && !(lock & 1)) ||
					    (name == SO_RCVBUF && stream && !(lock & 2))))
			continue;
		if (fresh >= 0 && getsockopt(fresh, level, name, usual, &usual_len) == 0 &&
		    len == usual_len && memcmp(value, usual, sizeof(value)) == 0)
			continue;
		r = add_option(list, level, name, value, len, err);
		if (r < 0)
			return r;
	}
	return dump_filter(fd, list, err);
}

int socket_options_restore(const Pbeam__SocketOptions *list, int fd, struct err *err)
{
	for (size_t i = 0; list && i < list->n_options; i++) {
		const Pbeam__SocketOption *option = list->options[i];
		const void *value = option->value.data;
		size_t len = option->value.len;
		struct sock_fprog program;
		int half;

		if (option->level == SOL_SOCKET && (option->name == SO_SNDBUF || option->name == SO_RCVBUF)) {
			/* The kernel doubles what it is given. */
			if (len != sizeof(half))
				return err_set(err, -EBADMSG, "the image's socket options are malformed");
			memcpy(&half, value, sizeof(half));
			half /= 2;
			value = &half;
		} else if (option->level == SOL_SOCKET && option->name == SO_ATTACH_FILTER) {
			program.len = (unsigned short)(len / sizeof(struct sock_filter));
			program.filter = (struct sock_filter *)(void *)option->value.data;
			value = &program;
			len = sizeof(program);
		}
		/* Refused after bind(), even what it is already. */
		if (option->level == IPPROTO_IPV6 && option->name == IPV6_V6ONLY && len == sizeof(half) &&
		    socket_option(fd, IPPROTO_IPV6, IPV6_V6ONLY, -1) == *(const int *)value)
			continue;
		if (setsockopt(fd, option->level, option->name, value, (socklen_t)len) < 0)
			return err_sys(err, "set socket option %d of level %d", option->name, option->level);
	}
	return 0;
}

bool socket_options_include(const Pbeam__SocketOptions *list, int level, int name)
{
	for (size_t i = 0; list && i < list->n_options; i++)
		if (list->options[i]->level == level && list->options[i]->name == name)
			return true;
	return false;
}

int socket_options_renew(const Pbeam__SocketOptions *list, int fd, struct err *err)
{
	auto_close int fresh = socket(socket_option(fd, SOL_SOCKET, SO_DOMAIN, AF_UNIX),
				      socket_option(fd, SOL_SOCKET, SO_TYPE, SOCK_STREAM) | SOCK_CLOEXEC,
				      socket_option(fd, SOL_SOCKET, SO_PROTOCOL, 0));
	const int off = 0;

	for (size_t i = 0; fresh >= 0 && i < sizeof(options) / sizeof(options[0]); i++) {
		char value[64] = {0}, usual[64] = {0};
		socklen_t len = sizeof(value), usual_len = sizeof(usual);
		int level = options[i].level, name = options[i].name;

		/* A size that was set cannot be given back to the kernel. */
		if (socket_options_include(list, level, name) ||
		    (level == SOL_SOCKET && (name == SO_SNDBUF || name == SO_RCVBUF)) ||
		    getsockopt(fd, level, name, value, &len) < 0 ||
		    getsockopt(fresh, level, name, usual, &usual_len) < 0 || len != usual_len ||
		    memcmp(value, usual, sizeof(value)) == 0)
			continue;
		(void)!setsockopt(fd, level, name, usual,
				  usual_len); /* some cannot be set once it is bound */
	}
	if (!socket_options_include(list, SOL_SOCKET, SO_ATTACH_FILTER))
		(void)!setsockopt(fd, SOL_SOCKET, SO_DETACH_FILTER, &off, sizeof(off));
	return socket_options_restore(list, fd, err);
}

struct socket_room socket_room_make(int fd)
{
	struct socket_room room = {
		.fd = fd,
		.sndbuf = socket_option(fd, SOL_SOCKET, SO_SNDBUF, 0),
		.lock = socket_option(fd, SOL_SOCKET, SO_BUF_LOCK, 0),
	};
	int most = 1 << 30;

	if (setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &most, sizeof(most)) < 0)
		(void)!setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &most, sizeof(most));
	return room;
}

void socket_room_restore(const struct socket_room *room)
{
	int half = room->sndbuf / 2;

	(void)!setsockopt(room->fd, SOL_SOCKET, SO_SNDBUF, &half, sizeof(half));
	(void)!setsockopt(room->fd, SOL_SOCKET, SO_BUF_LOCK, &room->lock, sizeof(room->lock));
}

int socket_name(int fd, bool peer, ProtobufCBinaryData *out, struct err *err)
{
	struct sockaddr_storage name;
	socklen_t len = sizeof(name);

	if ((peer ? getpeername : getsockname)(fd, (struct sockaddr *)&name, &len) < 0) {
		if (errno == ENOTCONN)
			return 0;
		return err_sys(err, "a socket whose address cannot be read");
	}
	return object_set_bytes(out, &name, len < sizeof(name) ? len : sizeof(name), err);
}

static int set_name(ProtobufCBinaryData *out, const union name_sockaddr *name)
{
	if (!name->sa.sa_family)
		return 0;
	return message_bytes(out, name, name->sa.sa_family == AF_INET ? sizeof(name->in) : sizeof(name->in6));
}

int socket_dump_name(struct names *names, uint64_t ino, ProtobufCBinaryData *own, ProtobufCBinaryData *peer,
		     char **host)
{
	struct name_socket name;

	if (names_socket_get(names, ino, &name) < 0)
		return 0;
	if (set_name(own, &name.own) < 0 || set_name(peer, &name.peer) < 0)
		return -ENOMEM;
	return name.born[0] ? message_string(host, name.born) : 0;
}

/* ---- queues ---- */

struct peek {
	struct object_dump *dump;
	int fd;
	bool stream;
	char *buf;
	size_t size;
	int offset; /* where in the queue the next piece begins */
	int limit;  /* how much there is, -1: to the end */
};

static int add_passed(struct peek *peek, Pbeam__Datagram *piece, const int *fds, size_t n, struct err *err)
{
	for (size_t i = 0; i < n; i++) {
		uint32_t id;
		int r = object_dump_add_hidden(peek->dump, fds[i], &id, err);

		if (r == 0 && object_append(piece->passed_objects, piece->n_passed_objects, id) < 0)
			r = object_no_memory(err);
		if (r < 0) {
			while (++i < n)
				close(fds[i]);
			return r;
		}
	}
	return 0;
}

static int take_control(struct peek *peek, struct msghdr *message, Pbeam__Datagram *piece, struct err *err)
{
	int r = 0;

	for (struct cmsghdr *c = CMSG_FIRSTHDR(message); c && r == 0; c = CMSG_NXTHDR(message, c)) {
		if (c->cmsg_level != SOL_SOCKET)
			continue;
		if (c->cmsg_type == SCM_RIGHTS) {
			int fds[PASSED_MAX];
			size_t n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);

			memcpy(fds, CMSG_DATA(c), n * sizeof(int));
			r = add_passed(peek, piece, fds, n, err);
		} else if (c->cmsg_type == SCM_CREDENTIALS) {
			struct ucred cred;

			memcpy(&cred, CMSG_DATA(c), sizeof(cred));
			piece->cred_vpid =
				names_virtual(object_dump_names(peek->dump), (struct rpid){cred.pid}).n;
			piece->cred_uid = cred.uid;
			piece->cred_gid = cred.gid;
		}
	}
	return r;
}

static void close_passed(struct msghdr *message)
{
	for (struct cmsghdr *c = CMSG_FIRSTHDR(message); c; c = CMSG_NXTHDR(message, c))
		if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS)
			for (size_t i = 0; i < (c->cmsg_len - CMSG_LEN(0)) / sizeof(int); i++) {
				int fd;

				memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(fd));
				close(fd);
			}
}

/* The next piece. 1, 0 at the end of the queue, -EAGAIN when the buffer was too small and is larger now. */
static int peek_piece(struct peek *peek, size_t *n, Pbeam__Datagram ***queue, struct err *err)
{
	struct sockaddr_storage name;
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(PASSED_MAX * sizeof(int)) + CMSG_SPACE(sizeof(struct ucred)) + 512];
	} control;
	struct iovec iov = {peek->buf, peek->size};
	struct msghdr message = {
		.msg_name = &name,
		.msg_namelen = sizeof(name),
		.msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = &control,
		.msg_controllen = sizeof(control),
	};
	int flags = MSG_PEEK | MSG_DONTWAIT | MSG_CMSG_CLOEXEC | (peek->stream ? 0 : MSG_TRUNC);
	ssize_t len = recvmsg(peek->fd, &message, flags);
	Pbeam__Datagram *piece;
	int r;

	if (len < 0 && (errno == EAGAIN || errno == ENOTCONN || errno == EINVAL || errno == ECONNRESET))
		return 0;
	if (len < 0)
		return err_sys(err, "a socket whose queue cannot be read");
	if (len == 0 && peek->stream)
		return 0;
	if ((size_t)len > peek->size) {
		close_passed(&message);
		free(peek->buf);
		peek->size = (size_t)len;
		peek->buf = peek->size <= PIECE_MAX ? malloc(peek->size) : NULL;
		return peek->buf ? -EAGAIN : object_no_memory(err);
	}
	piece = object_message(Pbeam__Datagram, pbeam__datagram__init);
	if (!piece || object_append(*queue, *n, piece) < 0) {
		free(piece);
		close_passed(&message);
		return object_no_memory(err);
	}
	r = take_control(peek, &message, piece, err);
	if (r == 0 && message.msg_namelen)
		r = object_set_bytes(&piece->source, &name, message.msg_namelen, err);
	if (r == 0)
		r = object_put_extent(peek->dump, peek->buf, (size_t)len, &piece->data, err);
	peek->offset += (int)len;
	return r < 0 ? r : 1;
}

int socket_queue_dump(struct object_dump *dump, int fd, bool stream, size_t *n, Pbeam__Datagram ***queue,
		      struct err *err)
{
	struct peek peek = {.dump = dump, .fd = fd, .stream = stream, .size = PIECE_FIRST};
	int old = socket_option(fd, SOL_SOCKET, SO_PEEK_OFF, -1), r;

	/* Beyond the last byte a read takes the pending error of the socket: it is not gone that far. */
	peek.limit = -1;
	if (socket_option(fd, SOL_SOCKET, SO_TYPE, SOCK_STREAM) != SOCK_DGRAM &&
	    ioctl(fd, FIONREAD, &peek.limit) < 0)
		peek.limit = -1;
	if (peek.limit == 0)
		return 0;
	peek.buf = malloc(peek.size);
	if (!peek.buf)
		return object_no_memory(err);
	do {
		if (peek.offset == peek.limit)
			r = 0;
		else if (setsockopt(fd, SOL_SOCKET, SO_PEEK_OFF, &peek.offset, sizeof(peek.offset)) < 0)
			r = err_sys(err, "a socket whose queue cannot be looked at (SO_PEEK_OFF)");
		else
			r = peek_piece(&peek, n, queue, err);
	} while (r == 1 || r == -EAGAIN);
	(void)!setsockopt(fd, SOL_SOCKET, SO_PEEK_OFF, &old, sizeof(old));
	free(peek.buf);
	return r;
}

static int fill_control(struct object_restore *restore, const Pbeam__Datagram *piece, struct msghdr *message,
			char *control, struct err *err)
{
	struct cmsghdr *c = (struct cmsghdr *)(void *)control;

	if (piece->n_passed_objects == 0)
		return 0;
	if (piece->n_passed_objects > PASSED_MAX)
		return err_set(err, -EBADMSG, "the image passes too many descriptors at once");
	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(piece->n_passed_objects * sizeof(int));
	for (size_t i = 0; i < piece->n_passed_objects; i++) {
		int fd = object_restore_get(restore, piece->passed_objects[i], err);

		if (fd < 0)
			return fd;
		memcpy(CMSG_DATA(c) + i * sizeof(int), &fd, sizeof(fd));
	}
	message->msg_control = control;
	message->msg_controllen = CMSG_SPACE(piece->n_passed_objects * sizeof(int));
	return 0;
}

int socket_queue_send(struct object_restore *restore, const Pbeam__Datagram *piece, int fd, bool stream,
		      const struct sockaddr *to, socklen_t to_len, struct err *err)
{
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(PASSED_MAX * sizeof(int))];
	} control;
	auto_free char *data = NULL;
	struct iovec iov;
	struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1};
	size_t len, done = 0;
	int r = object_get_extent(restore, piece->data, &data, &len, err);

	if (r < 0)
		return r;
	message.msg_name = (void *)(uintptr_t)to;
	message.msg_namelen = to ? to_len : 0;
	r = fill_control(restore, piece, &message, control.bytes, err);
	if (r < 0)
		return r;
	do {
		ssize_t n;

		iov = (struct iovec){data + done, len - done};
		n = sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return err_sys(err, "refill its queue (%zu of %zu bytes are in)", done, len);
		done += (size_t)n;
		message.msg_controllen = 0;
	} while (stream && done < len);
	return 0;
}
