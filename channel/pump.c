/*
 * One channel's process: a poll loop between the TCP connection, encrypted, and the socketpair, plain.
 *
 * OpenSSL reads from the TCP connection itself (ahead, in large pieces) and writes into memory, from where
 * the loop writes to the connection: 256 KiB of records by one system call instead of 16. Each direction has
 * one buffer, refilled only when it is empty, so that a slow reader slows its writer and nothing grows.
 *
 * Half-closing goes through: end of file of the local side is a close_notify and a shutdown of the
 * connection's writing half; the other direction goes on until its own end. When the local socket is closed
 * for good (POLLHUP) what was written is still sent, then the process ends.
 *
 * A descriptor that comes from the local side asks for the connection itself (records.h).
 */
#include <errno.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
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

enum { PIECE = 256 << 10, HANDSHAKE_MS = 10000, ALERT_MS = 1000 };

struct pump {
	SSL *ssl;
	int tcp, local;
	size_t sent;		   /* of what is in the memory BIO */
	uint8_t *plain;		   /* decrypted, for the local side */
	size_t have, done;	   /* in `plain` */
	uint8_t *outgoing;	   /* of the local side, to be encrypted */
	size_t due, encrypted;	   /* in `outgoing` */
	bool local_eof, tcp_eof;   /* nothing more comes from there */
	bool told_local, told_tcp; /* and the other side knows */
	bool hung;		   /* nobody holds the local side's other end any more */
	bool cut;		   /* the connection is gone */
	enum tls_role role;
	int asked; /* who wants to have the connection (records.h); -1: nobody */
};

/* ---- the encrypted side ---- */

/* Nothing more can be sent or will come; what has come is still given to the local side. */
static void cut_off(struct pump *pump)
{
	pump->cut = pump->tcp_eof = pump->local_eof = pump->told_tcp = true;
	pump->due = pump->encrypted = 0;
}

static char *cipher_text(struct pump *pump, size_t *len)
{
	char *data;
	long n = BIO_get_mem_data(SSL_get_wbio(pump->ssl), &data);

	*len = n > 0 ? (size_t)n - pump->sent : 0;
	return data + pump->sent;
}

static size_t cipher_due(struct pump *pump)
{
	size_t len;

	cipher_text(pump, &len);
	return len;
}

static void send_cipher(struct pump *pump)
{
	size_t len;
	char *data = cipher_text(pump, &len);

	while (len > 0) {
		ssize_t n = send(pump->tcp, data, len, MSG_NOSIGNAL | MSG_DONTWAIT);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0) {
			if (errno != EAGAIN)
				cut_off(pump);
			return;
		}
		pump->sent += (size_t)n;
		data = cipher_text(pump, &len);
	}
	if (pump->sent) {
		(void)BIO_reset(SSL_get_wbio(pump->ssl));
		pump->sent = 0;
	}
}

static void decrypt(struct pump *pump)
{
	while (!pump->tcp_eof && pump->have < PIECE) {
		size_t n = 0;
		int error;

		ERR_clear_error();
		if (SSL_read_ex(pump->ssl, pump->plain + pump->have, PIECE - pump->have, &n)) {
			pump->have += n;
			continue;
		}
		error = SSL_get_error(pump->ssl, 0);
		if (error == SSL_ERROR_ZERO_RETURN)
			pump->tcp_eof = true;
		else if (error != SSL_ERROR_WANT_READ && error != SSL_ERROR_WANT_WRITE)
			cut_off(pump);
		return;
	}
}

/* ---- the plain side ---- */

static void send_plain(struct pump *pump)
{
	while (pump->done < pump->have) {
		ssize_t n = send(pump->local, pump->plain + pump->done, pump->have - pump->done,
				 MSG_NOSIGNAL | MSG_DONTWAIT);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0) {
			if (errno == EAGAIN)
				return;
			pump->hung = true;
			break;
		}
		pump->done += (size_t)n;
	}
	pump->have = pump->done = 0;
}

/* recv(). The byte that a descriptor comes with is no data; it is the last one, behind which the kernel stops
 * (unix_stream_read_generic() in net/unix/af_unix.c, 6.18). */
static ssize_t recv_local(struct pump *pump)
{
	int fd;
	ssize_t n = records_recv_descriptor(pump->local, pump->outgoing, PIECE, MSG_DONTWAIT, &fd);

	if (fd < 0)
		return n;
	if (pump->asked >= 0)
		close(pump->asked);
	pump->asked = fd;
	errno = EAGAIN;
	return n > 1 ? n - 1 : -1;
}

static void take_local(struct pump *pump)
{
	ssize_t n = recv_local(pump);

	if (n > 0)
		pump->due = (size_t)n;
	else if (n == 0)
		pump->local_eof = true;
	else if (errno != EAGAIN && errno != EINTR)
		pump->local_eof = true;
}

static void encrypt(struct pump *pump)
{
	while (pump->encrypted < pump->due) {
		size_t n = 0;

		ERR_clear_error();
		if (!SSL_write_ex(pump->ssl, pump->outgoing + pump->encrypted, pump->due - pump->encrypted,
				  &n)) {
			int error = SSL_get_error(pump->ssl, 0);

			if (error != SSL_ERROR_WANT_READ && error != SSL_ERROR_WANT_WRITE)
				cut_off(pump);
			return;
		}
		pump->encrypted += n;
	}
	pump->due = pump->encrypted = 0;
}

/* ---- the ends ---- */

static void pass_ends_on(struct pump *pump)
{
	if (pump->local_eof && !pump->due && !pump->told_tcp) {
		SSL_shutdown(pump->ssl);
		send_cipher(pump);
		pump->told_tcp = true;
	}
	if (pump->tcp_eof && pump->have == pump->done && !pump->told_local) {
		shutdown(pump->local, SHUT_WR);
		pump->told_local = true;
	}
}

static bool is_over(const struct pump *pump, size_t cipher)
{
	return pump->told_tcp && (!cipher || pump->cut) && (pump->told_local || pump->hung);
}

/* What is waited for. A descriptor of which nothing is wanted is left out: its hang-up would come at once and
 * for ever. */
static void choose(const struct pump *pump, size_t cipher, struct pollfd fds[2])
{
	fds[0] = (struct pollfd){.fd = pump->tcp};
	fds[1] = (struct pollfd){.fd = pump->local};
	if (!pump->have && !pump->tcp_eof)
		fds[0].events |= POLLIN;
	if (cipher && !pump->cut)
		fds[0].events |= POLLOUT;
	if (!pump->due && !cipher && !pump->local_eof)
		fds[1].events |= POLLIN;
	if (pump->have && !pump->hung)
		fds[1].events |= POLLOUT;
	if (!fds[0].events)
		fds[0].fd = -1;
	if (pump->hung && !(fds[1].events & POLLIN))
		fds[1].fd = -1;
}

/* The connection is given to who asked for it, with what is known of it, and we are done; or it is not. */
static void hand_over(struct pump *pump)
{
	struct records_answer answer = {0};

	answer.given = !pump->have && !pump->local_eof && !pump->tcp_eof && !pump->cut &&
		       tls_traffic(pump->ssl, pump->role, &answer.traffic);
	if (frame_send_some(pump->asked, &answer, sizeof(answer), &pump->tcp, answer.given ? 1 : 0) < 0)
		answer.given = false; /* it is gone, and the channel perhaps too */
	OPENSSL_cleanse(&answer.traffic, sizeof(answer.traffic));
	if (answer.given)
		_exit(0);
	close(pump->asked);
	pump->asked = -1;
}

static void copy(struct pump *pump)
{
	for (;;) {
		size_t cipher = cipher_due(pump);
		bool more = SSL_has_pending(pump->ssl) && !pump->have && !pump->tcp_eof;
		struct pollfd fds[2];

		if (is_over(pump, cipher))
			return;
		if (pump->asked >= 0 && !pump->due && !cipher)
			hand_over(pump);
		choose(pump, cipher, fds);
		if (poll(fds, 2, more ? 0 : -1) < 0) {
			if (errno != EINTR)
				return;
			continue;
		}
		if (fds[1].revents & (POLLHUP | POLLERR))
			pump->hung = true;
		if (fds[1].revents && fds[1].events & POLLIN)
			take_local(pump);
		if (pump->due)
			encrypt(pump);
		if (!pump->cut)
			send_cipher(pump);
		if (!pump->have && (more || fds[0].revents & (POLLIN | POLLHUP | POLLERR)))
			decrypt(pump);
		if (pump->hung)
			pump->have = pump->done = 0;
		if (pump->have)
			send_plain(pump);
		pass_ends_on(pump);
	}
}

/* ---- the beginning ---- */

static int wait_for(const struct pump *pump, short events, uint64_t until)
{
	struct pollfd fds[2] = {{.fd = pump->tcp, .events = events}, {.fd = pump->local}};
	uint64_t now = io_now_ns(CLOCK_MONOTONIC);
	int r;

	if (now >= until)
		return -ETIMEDOUT;
	r = poll(fds, 2, (int)((until - now) / 1000000) + 1);
	if (r < 0)
		return errno == EINTR ? 0 : -errno;
	return fds[1].revents ? -EPIPE : 0; /* whoever wanted the channel is gone */
}

static int shake_hands(struct pump *pump, enum tls_role role, struct err *err)
{
	uint64_t until = io_now_ns(CLOCK_MONOTONIC) + HANDSHAKE_MS * 1000000ull;

	for (;;) {
		int done, error, r;

		ERR_clear_error();
		done = SSL_do_handshake(pump->ssl);
		error = SSL_get_error(pump->ssl, done);
		if (done == 1) {
			/* the client's last flight is still to be sent; copy() does it */
			return SSL_session_reused(pump->ssl) ? 0 : tls_explain(role, err);
		}
		if (error != SSL_ERROR_WANT_READ && error != SSL_ERROR_WANT_WRITE) {
			r = tls_explain(role, err);
			send_cipher(pump); /* the alert that tells the other side why */
			return r;
		}
		send_cipher(pump);
		if (pump->cut)
			return err_set(err, -EPROTO, "it ended the connection during the handshake");
		r = wait_for(pump, (short)(cipher_due(pump) ? POLLOUT | POLLIN : POLLIN), until);
		if (r == -ETIMEDOUT)
			return err_set(err, r, "it did not shake hands within %d s", HANDSHAKE_MS / 1000);
		if (r < 0)
			return err_code(err, r, "handshake");
	}
}

/* An alert that was sent is lost when a connection is closed with bytes unread: they are read for a moment.
 */
static void linger(const struct pump *pump)
{
	uint64_t until = io_now_ns(CLOCK_MONOTONIC) + ALERT_MS * 1000000ull;
	char bytes[4096];

	shutdown(pump->tcp, SHUT_WR);
	while (wait_for(pump, POLLIN, until) == 0) {
		ssize_t n = recv(pump->tcp, bytes, sizeof(bytes), MSG_DONTWAIT);

		if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
			return;
	}
}

static void refuse(const struct pump *pump, const struct err *err)
{
	Pbeam__ChannelRefused refused = PBEAM__CHANNEL_REFUSED__INIT;

	refused.text = (char *)(uintptr_t)err->text;
	refused.code = err->code;
	if (frame_send(pump->local, PBEAM__CHANNEL_MESSAGE__CHANNEL_REFUSED, &refused.base, NULL, 0, NULL) <
	    0)
		return; /* nobody is there to hear it */
}

_Noreturn void pump_run(int tcp, int local, const struct channel_key *key, enum tls_role role)
{
	struct pump pump = {.tcp = tcp, .local = local, .role = role, .asked = -1};
	struct err err = ERR_INIT;

	pump.plain = malloc(PIECE);
	pump.outgoing = malloc(PIECE);
	pump.ssl = tls_new(tcp, key, role, &err);
	OPENSSL_cleanse((void *)(uintptr_t)key, sizeof(*key));
	if (!pump.ssl || !pump.plain || !pump.outgoing) {
		refuse(&pump, &err);
		_exit(1);
	}
	sandbox_enter();
	if (shake_hands(&pump, role, &err) < 0) {
		refuse(&pump, &err);
		linger(&pump);
		_exit(1);
	}
	copy(&pump);
	_exit(0);
}
