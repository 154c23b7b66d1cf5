/*
 * A client that waits to be accepted and has sent data already. The data is in a socket without a descriptor:
 * to see it the connection must be accepted, and the kernel takes no socket back into an accept queue. But
 * the client can be made to wait again: connect(AF_UNSPEC) on a duplicate of its socket ends the connection
 * and leaves the socket with its options and its port, as if it had never been connected. It connects again,
 * and its data is sent again. All this happens while both sides are frozen. The program sees at most a
 * wake-up of epoll without an event.
 *
 * So all connections that wait at a listener are taken and given back in their order. One from outside the
 * group could not be given back: then nothing is touched.
 */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <unistd.h>

#include "base/log.h"
#include "scip/object/common.h"
#include "scip/object/inet.h"
#include "scip/object/socket.h"
#include "scip/object/tcp_look.h"
#include "scip/object/tcp_socket.h"

#define DATA_MAX (64u << 20)

/* The socket of the group with this address of its own that is connected to `peer`. */
static Pbeam__TcpSocket *find_client(Pbeam__Manifest *manifest, const struct inet_address *own)
{
	for (size_t i = 0; i < manifest->n_objects; i++) {
		Pbeam__Object *object = manifest->objects[i];
		struct inet_address local;

		if (object->kind_case == PBEAM__OBJECT__KIND_TCP && tcp_was_connected(object->tcp) &&
		    inet_address_parse(&object->tcp->local, &local) && inet_same(&local, own))
			return object->tcp;
	}
	return NULL;
}

/* How many of the group's sockets wait at this listener. */
static unsigned count_waiting(Pbeam__Manifest *manifest, const struct inet_address *bound)
{
	unsigned n = 0;

	for (size_t i = 0; i < manifest->n_objects; i++) {
		const Pbeam__Object *object = manifest->objects[i];
		struct inet_address local, peer;
		struct inet_diag_answer answer;

		if (object->kind_case != PBEAM__OBJECT__KIND_TCP || !tcp_was_connected(object->tcp) ||
		    !inet_address_parse(&object->tcp->local, &local) ||
		    !inet_address_parse(&object->tcp->peer, &peer) || !inet_covers(bound, &peer))
			continue;
		n += inet_diag_tcp(&peer, &local, &answer) == 0 && answer.ino == 0 &&
		     (answer.state == TCP_ESTABLISHED || answer.state == TCP_CLOSE_WAIT);
	}
	return n;
}

static int tcp_peek_all(int fd, char **data, size_t *len)
{
	for (;;) {
		char *bigger = realloc(*data, *len + 65536);
		ssize_t n;

		if (!bigger || *len > DATA_MAX)
			return -ENOMEM;
		*data = bigger;
		n = recv(fd, *data + *len, 65536, MSG_DONTWAIT);
		if (n > 0)
			*len += (size_t)n;
		else if (n == 0 || errno == EAGAIN)
			return 0;
		else if (errno != EINTR)
			return -errno;
	}
}

static int tcp_send_pending(int fd, const char *data, size_t len)
{
	struct pollfd poll_fd = {.fd = fd, .events = POLLOUT};
	size_t done = 0;

	while (done < len) {
		ssize_t n = send(fd, data + done, len - done, MSG_DONTWAIT | MSG_NOSIGNAL);

		if (n > 0)
			done += (size_t)n;
		else if (errno != EAGAIN && errno != EINTR)
			return -errno;
		else if (poll(&poll_fd, 1, 2000) == 0)
			return -ENOBUFS;
	}
	return 0;
}

static int wait_again(int client, const char *data, size_t len)
{
	const struct sockaddr none = {.sa_family = AF_UNSPEC};
	struct tcp_look before;
	int r = tcp_look(client, &before, NULL);

	if (r < 0)
		return r;
	if (connect(client, &none, sizeof(none)) < 0)
		return -errno;
	(void)socket_option(client, SOL_SOCKET, SO_ERROR, 0); /* the reset is ours */
	if (connect(client, &before.peer.any, before.peer.len) < 0)
		return -errno;
	r = tcp_send_pending(client, data, len);
	if (r == 0 && before.shutdown & 2 && shutdown(client, SHUT_WR) < 0)
		r = -errno;
	return r < 0 ? r : tcp_drain(client, -1);
}

/* Takes one connection, and gives it back when its data is known. */
static int take_one(struct object_dump *dump, int listener, struct err *err)
{
	const struct linger reset = {.l_onoff = 1, .l_linger = 0};
	struct inet_address from = {.len = sizeof(from.v6)};
	auto_close int accepted = accept4(listener, &from.any, &from.len, SOCK_CLOEXEC);
	const struct object_source *source = NULL;
	Pbeam__TcpSocket *client;
	struct pollfd urgent = {.fd = accepted, .events = POLLPRI};
	auto_free char *data = NULL;
	size_t len = 0;
	int on = 1, r;

	if (accepted < 0)
		return err_sys(err, "a listening TCP socket whose waiting connections cannot be taken");
	client = find_client(object_dump_manifest(dump), &from);
	source = client ? object_dump_find_inode(dump, client->ino, NULL) : NULL;
	if (!source)
		return err_set(err, -EBUSY,
			       "a TCP connection from outside the tree came just now; try again");
	(void)!setsockopt(accepted, SOL_SOCKET, SO_OOBINLINE, &on, sizeof(on));
	if (poll(&urgent, 1, 0) > 0)
		log_warn(
			"checkpoint: the urgent byte of a TCP connection that waits to be accepted is now an "
			"ordinary one");
	r = tcp_peek_all(accepted, &data, &len);
	if (r == 0)
		r = object_put_extent(dump, data, len, &client->sent, err);
	(void)!setsockopt(accepted, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
	if (r == 0) {
		r = wait_again(source->local, data, len);
		if (r < 0)
			err_code(err, r,
				 "a TCP connection that waits to be accepted and could not be renewed");
	}
	return r;
}

int tcp_take_pending(struct object_dump *dump, const struct object_source *listener, struct err *err)
{
	const struct tcp_look *look = tcp_look_of(dump, listener);
	struct tcp_info info = {.tcpi_state = 0};
	socklen_t len = sizeof(info);
	unsigned waiting;
	int r = 0;

	if (!look || getsockopt(listener->local, IPPROTO_TCP, TCP_INFO, &info, &len) < 0)
		return err_set(err, -ENOTSUP,
			       "a TCP connection that waits at a listener that cannot be read");
	waiting = count_waiting(object_dump_manifest(dump), &look->own);
	if (info.tcpi_unacked != waiting) /* of a listener: how many wait */
		return err_set(err, -EBUSY,
			       "a TCP connection that waits to be accepted, beside others from outside the "
			       "tree; try "
			       "again once they are accepted");
	for (unsigned i = 0; i < waiting && r == 0; i++)
		r = take_one(dump, listener->local, err);
	return r;
}
