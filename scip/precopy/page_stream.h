/*
 * One connection that carries pages, as either end sees it: frames, and bulk data after them.
 *
 * For one thread, except page_stream_stop(), which another thread calls.
 */
#ifndef SCIP_PRECOPY_PAGE_STREAM_H
#define SCIP_PRECOPY_PAGE_STREAM_H

#include <pthread.h>
#include <stdbool.h>

#include "channel/tls_stream.h"
#include "proto/frame.h"

enum {
	PAGE_STREAMS_MAX = 4,	     /* besides the migration's channel */
	PAGE_STREAM_BATCH = 1 << 20, /* bytes of pages in a message, at most */
};

struct page_stream {
	int fd;			/* the channel; with `tls` the TCP connection that was taken over from it */
	struct tls_stream *tls; /* NULL: the process behind the channel speaks TLS */
	pthread_mutex_t lock;	/* for fd and stopped */
	bool stopped;
};

/* `channel` is the stream's from here on. */
void page_stream_init(struct page_stream *stream, int channel);
/* Takes the channel's connection over and performs the TLS handshake; both ends must. Blocks, at most some
 * seconds. 0 or -errno, after which the stream can only be closed. */
must_check int page_stream_secure(struct page_stream *stream, enum tls_role role, struct err *err);
/* Sets how long to wait for the peer at most. */
void page_stream_set_timeout(const struct page_stream *stream, int seconds);
/* Makes whatever the stream's thread is waiting for fail. */
void page_stream_stop(struct page_stream *stream);
/* The stream of the migration's own channel is released without closing that. */
void page_stream_release(struct page_stream *stream);
void page_stream_close(struct page_stream *stream);

/* Both may keep the bytes until page_stream_flush(). After -EPIPE or -ECONNRESET the peer's reason may still
 * be there to be received. */
must_check int page_stream_send(struct page_stream *stream, uint32_t type, const ProtobufCMessage *message,
				struct err *err);
must_check int page_stream_send_bulk(struct page_stream *stream, const void *data, uint64_t len,
				     struct err *err);
must_check int page_stream_flush(struct page_stream *stream, struct err *err);
/* As wire_take_any(), wire_take() and wire_take_bytes() (channel/wire.h). */
must_check int page_stream_take_any(struct page_stream *stream, struct frame *frame, struct err *err);
must_check int page_stream_take(struct page_stream *stream, uint32_t type,
				const ProtobufCMessageDescriptor *body, void *out, struct err *err);
must_check int page_stream_take_bulk(struct page_stream *stream, void *to, uint64_t len, struct err *err);
/* Sends the peer the reason why nothing more will follow. */
void page_stream_fail(struct page_stream *stream, const struct err *why);

#endif
