#include "proto/stream.h"

#include <errno.h>
#include <event2/event.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/log.h"

struct output {
	struct output *next;
	uint8_t *bytes;
	size_t len, done;
	int fds[FRAME_FDS_MAX];
	int nfds;
};

static void free_output(struct output *output)
{
	for (int i = 0; i < output->nfds; i++)
		if (output->fds[i] >= 0)
			close(output->fds[i]);
	free(output->bytes);
	free(output);
}

void stream_close(struct stream *stream)
{
	if (stream->fd < 0)
		return;
	if (stream->readable)
		event_free(stream->readable);
	if (stream->writable)
		event_free(stream->writable);
	while (stream->first) {
		struct output *output = stream->first;

		stream->first = output->next;
		free_output(output);
	}
	frame_reader_reset(&stream->reader);
	close(stream->fd);
	memset(stream, 0, sizeof(*stream));
	stream->fd = -1;
}

/* Writes what the socket takes. Returns false when the other end is gone. */
static bool stream_write_some(struct stream *stream)
{
	while (stream->first) {
		struct output *output = stream->first;
		ssize_t n =
			frame_send_some(stream->fd, output->bytes + output->done, output->len - output->done,
					output->fds, output->done ? 0 : output->nfds);

		if (n == -EAGAIN)
			return event_add(stream->writable, NULL) == 0;
		if (n < 0)
			return false;
		output->done += (size_t)n;
		if (output->done < output->len)
			continue;
		stream->first = output->next;
		if (!stream->first)
			stream->last = NULL;
		stream->queued -= output->len;
		free_output(output);
	}
	return true;
}

static void on_writable(evutil_socket_t fd, short what, void *arg)
{
	struct stream *stream = arg;
	struct err none = ERR_INIT;

	if (!stream_write_some(stream))
		stream->calls->end(stream, &none);
	else if (!stream->first && stream->calls->drained)
		stream->calls->drained(stream);
}

static void on_readable(evutil_socket_t fd, short what, void *arg)
{
	struct stream *stream = arg;
	struct err err = ERR_INIT;
	struct frame frame;
	int r = frame_reader_step(&stream->reader, fd, &frame, &err);

	if (r == -EAGAIN)
		return;
	if (r <= 0) {
		stream->calls->end(stream, &err);
		return;
	}
	stream->calls->frame(stream, &frame);
	frame_free(&frame);
}

int stream_open(struct stream *stream, struct event_base *base, int fd, const struct stream_calls *calls,
		void *owner)
{
	memset(stream, 0, sizeof(*stream));
	stream->calls = calls;
	stream->owner = owner;
	stream->fd = fd;
	stream->readable = event_new(base, fd, EV_READ | EV_PERSIST, on_readable, stream);
	stream->writable = event_new(base, fd, EV_WRITE, on_writable, stream);
	if (!stream->readable || !stream->writable || fcntl(fd, F_SETFL, O_NONBLOCK) < 0 ||
	    event_add(stream->readable, NULL) < 0) {
		stream_close(stream);
		return -ENOMEM;
	}
	return 0;
}

/* Takes the output. An end that cannot be written to is noticed by its events: nothing is closed here,
 * callers hold it. */
static int stream_queue_output(struct stream *stream, struct output *output)
{
	if (stream->last)
		stream->last->next = output;
	else
		stream->first = output;
	stream->last = output;
	stream->queued += output->len;
	if (event_add(stream->writable, NULL) == 0)
		return 0;
	/* The kernel has no memory for the event. The socket has room in most cases. */
	if (stream_write_some(stream) && !stream->first)
		return 0;
	log_error("cannot send a message: no memory");
	return -ENOMEM;
}

void stream_flush(struct stream *stream)
{
	if (stream->fd >= 0 && !stream_write_some(stream))
		log_debug("the other end of a socket has closed");
}

int stream_send(struct stream *stream, uint32_t type, const ProtobufCMessage *message, const int *fds,
		int nfds)
{
	struct output *output = calloc(1, sizeof(*output));
	struct err err = ERR_INIT;
	int r = output ? frame_encode(type, message, nfds, &output->bytes, &output->len, &err) : -ENOMEM;

	if (r < 0) {
		log_error("cannot make a message: %s", output ? err.text : "no memory");
		free(output);
		return r;
	}
	for (int i = 0; i < nfds; i++)
		output->fds[output->nfds++] = fcntl(fds[i], F_DUPFD_CLOEXEC, 3);
	return stream_queue_output(stream, output);
}

/* A frame whose body is not looked into: its length goes into the header, itself behind it. */
static struct output *stream_new_output(uint32_t type, const void *body, size_t len, int nfds)
{
	struct output *output = calloc(1, sizeof(*output));
	uint32_t length = (uint32_t)len;
	uint8_t *bytes;

	if (!output || len > FRAME_BODY_MAX ||
	    frame_encode(type, NULL, nfds, &output->bytes, &output->len, NULL) < 0) {
		free(output);
		return NULL;
	}
	bytes = realloc(output->bytes, output->len + len);
	if (!bytes) {
		free_output(output);
		return NULL;
	}
	memcpy(bytes + 12, &length, sizeof(length));
	if (len)
		memcpy(bytes + output->len, body, len);
	output->bytes = bytes;
	output->len += len;
	return output;
}

int stream_send_bytes(struct stream *stream, uint32_t type, const void *body, size_t len)
{
	struct output *output = stream_new_output(type, body, len, 0);

	return output ? stream_queue_output(stream, output) : -ENOMEM;
}

int stream_relay(struct stream *stream, struct frame *frame)
{
	struct output *output = stream_new_output(frame->type, frame->body, frame->len, frame->nfds);

	if (!output)
		return -ENOMEM;
	for (int i = 0; i < frame->nfds; i++)
		output->fds[output->nfds++] = steal_fd(&frame->fds[i]);
	return stream_queue_output(stream, output);
}
