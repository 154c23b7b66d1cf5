/*
 * Frames on a socket in the event loop: what comes is handed on one frame at a time, what is sent waits in a
 * queue until the socket takes it.
 */
#ifndef PROTO_STREAM_H
#define PROTO_STREAM_H

#include <stdbool.h>

#include "proto/frame.h"

struct event;
struct event_base;
struct output; /* a frame on its way out */
struct stream;

struct stream_calls {
	/* A frame came; what is not taken of it is freed afterwards. May close the stream, as its last act.
	 */
	void (*frame)(struct stream *stream, struct frame *frame);
	/* The other end is gone, or (err set) sent what is none. The owner closes the stream. */
	void (*end)(struct stream *stream, const struct err *err);
	/* All that was queued is sent. May be NULL; may close the stream. */
	void (*drained)(struct stream *stream);
};

struct stream {
	const struct stream_calls *calls;
	void *owner;
	int fd; /* owned */
	struct event *readable, *writable;
	struct frame_reader reader;
	struct output *first, *last;
	size_t queued; /* bytes */
};

/* Takes `fd`, also on failure. -ENOMEM. */
must_check int stream_open(struct stream *stream, struct event_base *base, int fd,
			   const struct stream_calls *calls, void *owner);
/* Closes it at once; what is queued is lost. No effect on one that is not open (fd -1). */
void stream_close(struct stream *stream);
/* Queues a frame; descriptors are duplicated. -errno: it cannot be sent. An end that is gone is noticed by
 * reading. */
must_check int stream_send(struct stream *stream, uint32_t type, const ProtobufCMessage *message,
			   const int *fds, int nfds);
/* Sends what the socket takes now, for a caller that may exit before the loop does. No effect if it is
 * closed. */
void stream_flush(struct stream *stream);
/* Queues a frame as it came, with its descriptors, which are taken. */
must_check int stream_relay(struct stream *stream, struct frame *frame);
/* Queues a frame with a body that is packed already. */
must_check int stream_send_bytes(struct stream *stream, uint32_t type, const void *body, size_t len);

#endif
