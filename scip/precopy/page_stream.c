#include "scip/precopy/page_stream.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "base/log.h"
#include "channel/wire.h"
#include "proto/cluster.pb-c.h"
#include "proto/rpc.h"

/* ---- beginning and end ---- */

void page_stream_init(struct page_stream *stream, int channel)
{
	*stream = (struct page_stream){.fd = channel};
	pthread_mutex_init(&stream->lock, NULL);
}

/* Replaces the channel by the connection. False when the stream has been stopped meanwhile. */
static bool use_connection(struct page_stream *stream, int tcp)
{
	bool stopped;

	pthread_mutex_lock(&stream->lock);
	stopped = stream->stopped;
	close(stream->fd);
	stream->fd = tcp;
	pthread_mutex_unlock(&stream->lock);
	return !stopped;
}

int page_stream_secure(struct page_stream *stream, enum tls_role role, struct err *err)
{
	uint8_t secret[TLS_SECRET];
	int r, tcp = tls_stream_take_over(stream->fd, secret, err);

	if (tcp < 0)
		return tcp;
	r = use_connection(stream, tcp) ? tls_stream_open(&stream->tls, tcp, secret, role, err)
					: err_set(err, -ECANCELED, "it is no longer wanted");
	explicit_bzero(secret, sizeof(secret));
	return r;
}

void page_stream_set_timeout(const struct page_stream *stream, int seconds)
{
	rpc_set_timeout(stream->fd, (unsigned)seconds * 1000);
}

void page_stream_stop(struct page_stream *stream)
{
	pthread_mutex_lock(&stream->lock);
	stream->stopped = true;
	shutdown(stream->fd, SHUT_RDWR);
	pthread_mutex_unlock(&stream->lock);
}

void page_stream_release(struct page_stream *stream)
{
	pthread_mutex_destroy(&stream->lock);
	stream->fd = -1;
}

void page_stream_close(struct page_stream *stream)
{
	if (stream->tls)
		tls_stream_close(stream->tls);
	else if (stream->fd >= 0)
		close(stream->fd);
	page_stream_release(stream);
}

/* ---- sending ---- */

int page_stream_send(struct page_stream *stream, uint32_t type, const ProtobufCMessage *message,
		     struct err *err)
{
	auto_free uint8_t *bytes = NULL;
	size_t len;
	int r;

	if (!stream->tls)
		return frame_send(stream->fd, type, message, NULL, 0, err);
	r = frame_encode(type, message, 0, &bytes, &len, err);
	return r < 0 ? r : page_stream_send_bulk(stream, bytes, len, err);
}

int page_stream_send_bulk(struct page_stream *stream, const void *data, uint64_t len, struct err *err)
{
	const uint8_t *at = data;

	if (stream->tls) {
		int r = tls_stream_write(stream->tls, data, len);

		return r < 0 ? err_code(err, r, "send pages") : 0;
	}
	while (len > 0) {
		ssize_t n = io_send(stream->fd, at, len, MSG_NOSIGNAL);

		if (n < 0)
			return err_code(err, (int)n, "send pages");
		at += n;
		len -= (uint64_t)n;
	}
	return 0;
}

int page_stream_flush(struct page_stream *stream, struct err *err)
{
	int r = stream->tls ? tls_stream_flush(stream->tls) : 0;

	return r < 0 ? err_code(err, r, "send pages") : 0;
}

void page_stream_fail(struct page_stream *stream, const struct err *why)
{
	const Pbeam__Failed failed = rpc_failed(why);

	if (page_stream_send(stream, PBEAM__RPC__RPC_FAILED, &failed.base, NULL) < 0 ||
	    page_stream_flush(stream, NULL) < 0)
		log_debug("migrate: the peer of a stream is gone");
}

/* ---- receiving ---- */

static ssize_t read_tls(void *arg, void *to, size_t len)
{
	return tls_stream_read(arg, to, len);
}

int page_stream_take_any(struct page_stream *stream, struct frame *frame, struct err *err)
{
	if (!stream->tls)
		return wire_take_any(stream->fd, frame, err);
	return wire_received(frame_recv_from(read_tls, stream->tls, frame, err), frame, err);
}

int page_stream_take(struct page_stream *stream, uint32_t type, const ProtobufCMessageDescriptor *body,
		     void *out, struct err *err)
{
	struct frame frame = {0};
	int r = page_stream_take_any(stream, &frame, err);

	return r < 0 ? r : wire_is(&frame, type, body, out, err);
}

int page_stream_take_bulk(struct page_stream *stream, void *to, uint64_t len, struct err *err)
{
	uint64_t at = 0;

	if (!stream->tls)
		return wire_take_bytes(stream->fd, to, len, err);
	while (at < len) {
		ssize_t n = tls_stream_read(stream->tls, (uint8_t *)to + at, len - at);

		if (n <= 0)
			return err_code(err, n < 0 ? (int)n : -EPIPE, "receive pages");
		at += (uint64_t)n;
	}
	return 0;
}
