/*
 * Empty datagrams. To look at one marks it (skb->peeked), and with SO_PEEK_OFF a marked empty datagram is
 * never seen again by a peek (__skb_try_recv_from_queue(), as of 6.18): the next checkpoint would lose it. So
 * a queue in which one was found is turned round once: each datagram is received and sent again by the socket
 * that sent it. All sockets are frozen, so nobody sees it and the order stays. Where a sender is not at hand
 * the queue is left alone.
 */
#include <errno.h>
#include <netinet/in.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/log.h"
#include "scip/object/common.h"
#include "scip/object/inet.h"
#include "scip/object/socket.h"

#define PIECE_MAX (1u << 18)

struct address {
	struct sockaddr_storage name;
	socklen_t len;
};

static bool same_address(const struct address *a, const struct address *b)
{
	return a->len == b->len && bytes_equal(&a->name, &b->name, a->len);
}

static bool parse_address(const ProtobufCBinaryData *bytes, struct address *out)
{
	memset(out, 0, sizeof(*out));
	if (bytes->len > sizeof(out->name))
		return false;
	bytes_copy(&out->name, bytes->data, bytes->len);
	out->len = (socklen_t)bytes->len;
	return true;
}

/* The group's datagram socket of this name. */
static int find_named(struct object_dump *dump, int family, const struct address *name)
{
	const struct object_source *source;

	for (size_t i = 0; (source = object_dump_source(dump, i)) != NULL; i++) {
		struct address own = {.len = sizeof(own.name)};

		if (socket_is(source, family, SOCK_DGRAM) &&
		    getsockname(source->local, (struct sockaddr *)&own.name, &own.len) == 0 &&
		    same_address(&own, name))
			return source->local;
	}
	return -1;
}

/* The socket to send it with: the sender's, or a new one where that makes no difference. */
static int datagram_find_sender(struct object_dump *dump, int family, const Pbeam__Datagram *piece, int peer,
				int *temporary)
{
	struct address from;
	int on = 1, fd;

	if (!parse_address(&piece->source, &from))
		return -1;
	if (family == AF_UNIX && from.len <= sizeof(sa_family_t)) {
		if (peer >= 0)
			return peer;
		if (*temporary < 0)
			*temporary = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
		return *temporary;
	}
	fd = find_named(dump, family, &from);
	if (fd >= 0 || family == AF_UNIX || *temporary >= 0)
		return fd;
	*temporary = fd = socket(family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd >= 0 && (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) < 0 ||
			bind(fd, (struct sockaddr *)&from.name, from.len) < 0))
		return -1;
	return fd;
}

static int turn_one(int fd, int sender, const struct address *to, char *buf)
{
	union {
		struct cmsghdr align;
		char bytes[4096];
	} control;
	struct iovec iov = {buf, PIECE_MAX};
	struct msghdr message = {
		.msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = &control,
		.msg_controllen = sizeof(control),
	};
	ssize_t n = recvmsg(fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	struct cmsghdr *c;
	int r = 0;

	if (n < 0 || message.msg_flags & (MSG_TRUNC | MSG_CTRUNC))
		return n < 0 ? -errno : -EMSGSIZE;
	iov.iov_len = (size_t)n;
	c = CMSG_FIRSTHDR(&message);
	if (!c || c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
		message.msg_controllen = 0;
	message.msg_name = (void *)(uintptr_t)&to->name;
	message.msg_namelen = to->len;
	if (to->len <= sizeof(sa_family_t)) {
		message.msg_name = NULL;
		message.msg_namelen = 0;
	}
	if (sendmsg(sender, &message, MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
		r = -errno;
	for (size_t i = 0; message.msg_controllen && i < (c->cmsg_len - CMSG_LEN(0)) / sizeof(int); i++) {
		int passed;

		memcpy(&passed, CMSG_DATA(c) + i * sizeof(int), sizeof(passed));
		close(passed);
	}
	return r;
}

/* Where datagrams for this socket are sent to; a wildcard is reached on the loopback. */
static struct address own_address(int fd, int family)
{
	struct address own = {.len = sizeof(own.name)};
	struct sockaddr_in *v4 = (void *)&own.name;
	struct sockaddr_in6 *v6 = (void *)&own.name;

	if (getsockname(fd, (struct sockaddr *)&own.name, &own.len) < 0)
		own.len = 0;
	if (family == AF_INET && v4->sin_addr.s_addr == INADDR_ANY)
		v4->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	if (family == AF_INET6 && IN6_IS_ADDR_UNSPECIFIED(&v6->sin6_addr))
		v6->sin6_addr = in6addr_loopback;
	return own;
}

static bool any_empty(Pbeam__Datagram *const *queue, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (!queue[i]->data)
			return true;
	return false;
}

int socket_queue_renew(struct object_dump *dump, int fd, int peer, size_t n, Pbeam__Datagram *const *queue,
		       struct err *err)
{
	int family = socket_option(fd, SOL_SOCKET, SO_DOMAIN, AF_UNIX);
	struct address own = own_address(fd, family);
	auto_free int *senders = calloc(n + 1, sizeof(*senders));
	auto_free char *buf = NULL;
	auto_close int temporary = -1;
	int r = 0;

	if (!any_empty(queue, n))
		return 0;
	buf = malloc(PIECE_MAX);
	if (!senders || !buf)
		return object_no_memory(err);
	for (size_t i = 0; i < n; i++) {
		senders[i] = datagram_find_sender(dump, family, queue[i], peer, &temporary);
		if (senders[i] < 0 || (senders[i] == temporary && own.len <= sizeof(sa_family_t)) ||
		    (family == AF_UNIX && socket_option(fd, SOL_SOCKET, SO_PASSCRED, 0))) {
			log_warn("checkpoint: an empty datagram waits at a socket whose sender is elsewhere: "
				 "a "
				 "later checkpoint will not see it");
			return 0;
		}
	}
	for (size_t i = 0; i < n && r == 0; i++) {
		static const struct address none = {.len = 0};

		/* A pair has no names, and needs none. */
		r = turn_one(fd, senders[i], senders[i] == peer ? &none : &own, buf);
	}
	return r < 0 ? err_code(err, r, "a socket whose queue could not be renewed") : 0;
}
