#include "channel/tls_stream.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/crypto.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "channel/tls.h"
#include "proto/frame.h"
#include "proto/message.h"

enum { TAKE_OVER_S = 15 };

struct tls_stream {
	struct tls *tls;
	int tcp;
};

/* ---- taking over ---- */

static int unpack_connection(struct frame *frame, uint8_t secret[TLS_SECRET], struct err *err)
{
	Pbeam__ChannelConnection *connection =
		(Pbeam__ChannelConnection *)frame_unpack(frame, &pbeam__channel_connection__descriptor, err);
	int r = 0;

	if (!connection)
		return -EPROTO;
	if (frame->nfds != 1 || connection->secret.len != TLS_SECRET) {
		r = err_set(err, -EPROTO, "malformed answer from the process behind a channel");
	} else {
		memcpy(secret, connection->secret.data, TLS_SECRET);
		OPENSSL_cleanse(connection->secret.data, TLS_SECRET);
		r = steal_fd(&frame->fds[0]);
	}
	message_free(connection);
	return r;
}

int tls_stream_take_over(int sock, uint8_t secret[TLS_SECRET], struct err *err)
{
	const struct timeval patience = {.tv_sec = TAKE_OVER_S};
	auto_close int ours = -1, theirs = -1;
	struct frame frame;
	int pair[2], r;

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
		return err_sys(err, "take a channel over");
	ours = pair[0];
	theirs = pair[1];
	if (setsockopt(ours, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience)) < 0)
		return err_sys(err, "take a channel over");
	r = (int)frame_send_some(sock, "", 1, &theirs, 1);
	if (r < 0)
		return err_code(err, r, "take a channel over");
	close(steal_fd(&theirs)); /* so that the end of the process behind the channel shows */
	r = frame_recv(ours, &frame, err);
	if (r == 0 || r == -ECONNRESET)
		return err_set(err, -EPIPE, "the channel has ended");
	if (r < 0)
		return err_wrap(err, r, "take a channel over");
	r = unpack_connection(&frame, secret, err);
	OPENSSL_cleanse(frame.body, frame.len);
	frame_free(&frame);
	return r;
}

/* ---- beginning and end ---- */

static int set_blocking(int tcp, bool blocking, struct err *err)
{
	return fcntl(tcp, F_SETFL, blocking ? 0 : O_NONBLOCK) < 0 ? err_sys(err, "a stream's connection") : 0;
}

int tls_stream_open(struct tls_stream **out, int tcp, const uint8_t secret[TLS_SECRET], enum tls_role role,
		    struct err *err)
{
	struct tls_psk psk = {.identity = "pbeam stream 1"};
	struct tls_stream *stream = calloc(1, sizeof(*stream));
	int r;

	if (!stream)
		return err_code(err, -ENOMEM, "open a stream");
	memcpy(psk.secret, secret, TLS_SECRET);
	stream->tcp = tcp;
	stream->tls = tls_new(tcp, &psk, role, err);
	OPENSSL_cleanse(&psk, sizeof(psk));
	r = stream->tls ? set_blocking(tcp, false, err) : -ENOMEM;
	if (r == 0)
		r = tls_handshake(stream->tls, -1, err);
	if (r == 0)
		r = set_blocking(tcp, true, err);
	if (r == 0)
		r = tls_stream_flush(stream); /* the client's last flight */
	if (r < 0) {
		tls_free(stream->tls);
		free(stream);
		return err_wrap(err, r, "open a stream");
	}
	*out = stream;
	return 0;
}

void tls_stream_close(struct tls_stream *stream)
{
	if (!stream)
		return;
	if (!tls_unsent(stream->tls))
		tls_close_notify(stream->tls);
	if (tls_send(stream->tls, MSG_DONTWAIT) < 0)
		shutdown(stream->tcp, SHUT_RDWR);
	tls_free(stream->tls);
	close(stream->tcp);
	free(stream);
}

struct tls *tls_stream_tls(struct tls_stream *stream)
{
	return stream->tls;
}

/* ---- data ---- */

int tls_stream_write(struct tls_stream *stream, const void *data, size_t len)
{
	const uint8_t *at = data;

	while (len > 0) {
		ssize_t n = tls_write(stream->tls, at, len);

		int r = 0;

		if (n < 0)
			return (int)n;
		at += n;
		len -= (size_t)n;
		if (tls_unsent(stream->tls) >= TLS_PIECE)
			r = tls_stream_flush(stream);
		if (r < 0)
			return r;
	}
	return 0;
}

int tls_stream_flush(struct tls_stream *stream)
{
	int r = tls_send(stream->tls, 0);

	return r == -EAGAIN ? -ETIMEDOUT : r;
}

ssize_t tls_stream_read(struct tls_stream *stream, void *to, size_t len)
{
	ssize_t n = tls_read(stream->tls, to, len);

	return n == -EAGAIN ? -ETIMEDOUT : n;
}
