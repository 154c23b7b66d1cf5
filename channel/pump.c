/*
 * The process behind a channel: a poll loop between the TCP connection, encrypted, and the socketpair, plain.
 *
 * Each direction has one buffer, refilled only when it is empty, so that a slow reader slows its writer and
 * memory does not grow.
 *
 * Half-closing is passed on: end of file on the local side becomes a close_notify, and the other direction
 * continues until its own end. When the local socket is closed for good (POLLHUP), the process sends the
 * bytes that it has read and ends.
 *
 * A descriptor received from the local side requests the TCP connection (tls_stream.h). It counts as end of
 * file; once both sides have closed TLS the connection is sent to it.
 *
 * The loop does not use libevent: nearly each event changes the set of events to wait for. An event costs 2.5
 * us with poll and 4.8 us with libevent, which calls epoll_ctl(2) each time (bench/event_loop.c).
 */
#include <errno.h>
#include <openssl/crypto.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/io.h"
#include "channel/tls.h"
#include "proto/frame.h"
#include "proto/rpc.h"

enum { ALERT_MS = 1000 };

struct pump {
	struct tls *tls;
	int tcp, local;
	uint8_t *plain;		   /* decrypted, for the local side */
	size_t have, done;	   /* in `plain` */
	uint8_t *outgoing;	   /* from the local side, to be encrypted */
	size_t due, encrypted;	   /* in `outgoing` */
	bool local_eof, tcp_eof;   /* end of input from there */
	bool told_local, told_tcp; /* ... passed on to the other side */
	bool hung;		   /* no process holds the other end of the local side */
	bool cut;		   /* the connection takes nothing more */
	int asked;		   /* the descriptor that requests the connection; -1: none */
};

/* ---- the encrypted side ---- */

/* The connection takes nothing more. What the peer sent before it closed is still there: the reason. */
static void lose_sending(struct pump *pump)
{
	pump->cut = pump->local_eof = pump->told_tcp = true;
	pump->due = pump->encrypted = 0;
}

/* The connection has ended: bytes already decrypted still go to the local side. */
static void lose_connection(struct pump *pump)
{
	lose_sending(pump);
	pump->tcp_eof = true;
}

static void send_records(struct pump *pump)
{
	int r = pump->cut ? 0 : tls_send(pump->tls, MSG_DONTWAIT);

	if (r < 0 && r != -EAGAIN)
		lose_sending(pump);
}

static void decrypt_records(struct pump *pump)
{
	while (!pump->tcp_eof && pump->have < TLS_PIECE) {
		ssize_t n = tls_read(pump->tls, pump->plain + pump->have, TLS_PIECE - pump->have);

		if (n > 0)
			pump->have += (size_t)n;
		else if (n == 0)
			pump->tcp_eof = true;
		else if (n == -EAGAIN)
			return;
		else
			lose_connection(pump);
	}
}

static void encrypt_local(struct pump *pump)
{
	while (pump->encrypted < pump->due) {
		ssize_t n =
			tls_write(pump->tls, pump->outgoing + pump->encrypted, pump->due - pump->encrypted);

		if (n < 0) {
			lose_sending(pump);
			return;
		}
		pump->encrypted += (size_t)n;
	}
	pump->due = pump->encrypted = 0;
}

/* ---- the plain side ---- */

static void send_plain(struct pump *pump)
{
	while (pump->done < pump->have) {
		ssize_t n = io_send(pump->local, pump->plain + pump->done, pump->have - pump->done,
				    MSG_NOSIGNAL | MSG_DONTWAIT);

		if (n < 0) {
			if (n == -EAGAIN)
				return;
			pump->hung = true;
			break;
		}
		pump->done += (size_t)n;
	}
	pump->have = pump->done = 0;
}

/* recv() with the descriptor that came with the bytes: *fd, owned by the caller, -1 for none. */
static ssize_t recv_descriptor(int sock, void *to, size_t len, int *fd)
{
	struct iovec iov = {to, len};
	union {
		char room[CMSG_SPACE(sizeof(int))];
		struct cmsghdr align;
	} control;
	struct msghdr msg = {
		.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};
	struct cmsghdr *cmsg;
	ssize_t n = recvmsg(sock, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);

	*fd = -1;
	cmsg = n > 0 ? CMSG_FIRSTHDR(&msg) : NULL;
	if (cmsg && cmsg->cmsg_level == SOL_SOCKET && cmsg->cmsg_type == SCM_RIGHTS)
		memcpy(fd, CMSG_DATA(cmsg), sizeof(*fd));
	return n;
}

static void recv_local(struct pump *pump)
{
	int fd;
	ssize_t n = recv_descriptor(pump->local, pump->outgoing, TLS_PIECE, &fd);

	if (fd >= 0) {
		/* The byte that carries it is not data. It is the last byte received: the kernel stops
		 * after it (unix_stream_read_generic() in net/unix/af_unix.c, 6.18). */
		pump->asked = fd;
		pump->local_eof = true;
		pump->due = (size_t)n - 1;
	} else if (n > 0) {
		pump->due = (size_t)n;
	} else if (n == 0 || (errno != EAGAIN && errno != EINTR)) {
		pump->local_eof = true;
	}
}

/* ---- the ends ---- */

/* A server's close_notify tells the client that the server's process reads nothing more (tls_stream.h). */
static bool must_wait_for_client(const struct pump *pump)
{
	return pump->asked >= 0 && pump->tls->role == TLS_SERVER && !pump->tcp_eof && !pump->hung;
}

static void pass_ends_on(struct pump *pump)
{
	if (pump->local_eof && !pump->due && !pump->told_tcp && !must_wait_for_client(pump)) {
		tls_close_notify(pump->tls);
		send_records(pump);
		pump->told_tcp = true;
	}
	if (pump->tcp_eof && pump->have == pump->done && !pump->told_local) {
		shutdown(pump->local, SHUT_WR);
		pump->told_local = true;
	}
}

static bool is_pump_done(const struct pump *pump)
{
	return pump->told_tcp && (pump->cut || !tls_unsent(pump->tls)) && (pump->told_local || pump->hung);
}

/* Sends the connection to the process that requested it. If that fails, the process sees the end of the
 * socket. */
static void hand_connection_over(struct pump *pump)
{
	Pbeam__ChannelConnection connection = PBEAM__CHANNEL_CONNECTION__INIT;
	uint8_t secret[TLS_SECRET];

	if (pump->cut || pump->hung || tls_export(pump->tls, secret) < 0)
		return;
	connection.secret.data = secret;
	connection.secret.len = TLS_SECRET;
	if (frame_send(pump->asked, PBEAM__CHANNEL_MESSAGE__CHANNEL_CONNECTION, &connection.base, &pump->tcp,
		       1, NULL) < 0)
		return;
}

/* Chooses the events to wait for. A descriptor without any is left out: poll(2) would report its hang-up
 * at once, again and again. */
static void choose_events(const struct pump *pump, struct pollfd fds[2])
{
	const bool unsent = tls_unsent(pump->tls) > 0;

	fds[0] = (struct pollfd){.fd = pump->tcp};
	fds[1] = (struct pollfd){.fd = pump->local};
	if (!pump->have && !pump->tcp_eof)
		fds[0].events |= POLLIN;
	if (unsent && !pump->cut)
		fds[0].events |= POLLOUT;
	if (!pump->due && !unsent && !pump->local_eof)
		fds[1].events |= POLLIN;
	if (pump->have && !pump->hung)
		fds[1].events |= POLLOUT;
	if (!fds[0].events)
		fds[0].fd = -1;
	if (pump->hung && !(fds[1].events & POLLIN))
		fds[1].fd = -1;
}

static void copy_both_ways(struct pump *pump)
{
	while (!is_pump_done(pump)) {
		bool more = SSL_has_pending(pump->tls->ssl) && !pump->have && !pump->tcp_eof;
		struct pollfd fds[2];

		choose_events(pump, fds);
		if (poll(fds, 2, more ? 0 : -1) < 0) {
			if (errno != EINTR)
				return;
			continue;
		}
		if (fds[1].revents & (POLLHUP | POLLERR))
			pump->hung = true;
		if (fds[1].revents && fds[1].events & POLLIN)
			recv_local(pump);
		if (pump->due)
			encrypt_local(pump);
		send_records(pump);
		if (!pump->have && (more || fds[0].revents & (POLLIN | POLLHUP | POLLERR)))
			decrypt_records(pump);
		if (pump->hung)
			pump->have = pump->done = 0;
		if (pump->have)
			send_plain(pump);
		pass_ends_on(pump);
	}
	if (pump->asked >= 0)
		hand_connection_over(pump);
}

/* ---- the beginning ---- */

/* Reads for a moment before closing: an alert that was sent is lost if the connection is closed with
 * unread bytes. */
static void linger_for_alert(const struct pump *pump)
{
	const uint64_t until = io_now_ns(CLOCK_MONOTONIC) + ALERT_MS * 1000000ull;
	struct pollfd fds[2] = {{.fd = pump->tcp, .events = POLLIN}, {.fd = pump->local}};
	char bytes[4096];

	shutdown(pump->tcp, SHUT_WR);
	for (uint64_t now; (now = io_now_ns(CLOCK_MONOTONIC)) < until;) {
		ssize_t n;

		if (poll(fds, 2, (int)((until - now) / 1000000) + 1) <= 0 || fds[1].revents)
			return;
		n = recv(pump->tcp, bytes, sizeof(bytes), MSG_DONTWAIT);
		if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
			return;
	}
}

static void report_handshake(const struct pump *pump, const struct err *err)
{
	const Pbeam__Failed refused = rpc_failed(err);

	if (frame_send(pump->local, PBEAM__RPC__RPC_FAILED, &refused.base, NULL, 0, NULL) < 0)
		return; /* the reader has ended */
}

_Noreturn void pump_run(int tcp, int local, const struct channel_key *key, enum tls_role role)
{
	struct pump pump = {.tcp = tcp, .local = local, .asked = -1};
	struct err err = ERR_INIT;
	struct tls_psk psk;
	int r = channel_key_derive(key, &psk);

	OPENSSL_cleanse((void *)(uintptr_t)key, sizeof(*key));
	pump.plain = malloc(TLS_PIECE);
	pump.outgoing = malloc(TLS_PIECE);
	if (r < 0)
		err_set(&err, r, "no key can be derived");
	else
		pump.tls = tls_new(tcp, &psk, role, &err);
	OPENSSL_cleanse(&psk, sizeof(psk));
	if (!pump.tls || !pump.plain || !pump.outgoing) {
		report_handshake(&pump, &err);
		_exit(1);
	}
	sandbox_enter();
	if (tls_handshake(pump.tls, local, &err) < 0) {
		report_handshake(&pump, &err);
		linger_for_alert(&pump);
		_exit(1);
	}
	copy_both_ways(&pump);
	_exit(0);
}
