/*
 * A bridge's channels. Output: what is asked and acknowledged first, then the streams' records, one from each
 * stream in turn, straight from their logs: a channel that is slow holds up nothing but what is read from the
 * descriptors.
 *
 * The float makes its channels, in a child of its own, because a host that does not answer must not hold up
 * the streams to others: to RUNTIME/bridge/COOKIE where the anchor is on this same host, else through pbeamd.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "base/log.h"
#include "channel/channel.h"
#include "proto/message.h"
#include "scip/bridge/bridge_stream.h"

enum { RETRY_MS = 500 };

static uint64_t monotonic_now(void)
{
	return io_now_ns(CLOCK_MONOTONIC);
}

static void forget_output(struct channel *channel)
{
	free(channel->out);
	free(channel->control);
	channel->out = channel->control = NULL;
	channel->out_len = channel->out_done = channel->control_len = 0;
}

static void channel_lost(struct channel *channel)
{
	if (channel->sock >= 0)
		close(channel->sock);
	channel->sock = -1;
	frame_reader_reset(&channel->reader);
	forget_output(channel);
	if (!channel->lost_ns)
		channel->lost_ns = monotonic_now();
	if (channel->ours)
		return;
	for (struct bridge_stream *stream = channel->bridge->streams; stream; stream = stream->next)
		if (stream->channel == channel) {
			stream->channel = NULL;
			stream->lost_ns = monotonic_now();
		}
}

static void channel_connected(struct channel *channel, int sock)
{
	channel->sock = sock;
	channel->writable = true;
	if (fcntl(sock, F_SETFL, O_NONBLOCK | fcntl(sock, F_GETFL)) < 0 ||
	    bridge_watch(channel->bridge, sock, &channel->watch, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET) <
		    0)
		channel_lost(channel);
}

struct channel *channel_add(struct bridge *bridge, int sock)
{
	struct channel *channel = calloc(1, sizeof(*channel));

	if (!channel) {
		if (sock >= 0)
			close(sock);
		return NULL;
	}
	channel->bridge = bridge;
	channel->watch = (struct watch){WATCH_CHANNEL, channel};
	channel->sock = -1;
	channel->next = bridge->channels;
	bridge->channels = channel;
	if (sock >= 0)
		channel_connected(channel, sock);
	return channel;
}

void channel_free(struct channel *channel)
{
	struct channel **at = &channel->bridge->channels;

	while (*at && *at != channel)
		at = &(*at)->next;
	if (*at)
		*at = channel->next;
	if (channel->sock >= 0)
		close(channel->sock);
	frame_reader_reset(&channel->reader);
	forget_output(channel);
	free(channel);
}

/* ---- making one ---- */

/* Connects to an anchor on this host, which gets one end of a socket pair. Returns the other end, or -errno.
 */
static int open_near(const uint8_t *cookie)
{
	auto_close int control = -1, near = -1, far = -1;
	char path[4096];
	int pair[2], r;

	r = control_path(cookie, path, NULL);
	if (r < 0 || access(path, F_OK) < 0)
		return -ENOENT;
	control = frame_connect(path, NULL);
	if (control < 0)
		return control;
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
		return -errno;
	near = pair[0];
	far = pair[1];
	r = frame_send(control, PBEAM__CHANNEL_MESSAGE__BRIDGE_CHANNEL, NULL, &far, 1, NULL);
	return r < 0 ? r : steal_fd(&near);
}

/* In a child: sends the frame BRIDGE_CHANNEL with the descriptor, or nothing. */
static void open_and_pass(const struct channel *channel, int back)
{
	struct err err = ERR_INIT;
	int sock;

	bridge_close_all_but(back);
	sock = open_near(channel->cookie);

	if (sock < 0)
		sock = channel_open(channel->host, PBEAM__CHANNEL_KIND__CHANNEL_SESSION, channel->cookie,
				    &err);
	if (sock < 0) {
		log_info("bridge: the way to %s: %s", channel->host, err.text);
		_exit(1);
	}
	(void)!frame_send(back, PBEAM__CHANNEL_MESSAGE__BRIDGE_CHANNEL, NULL, &sock, 1, NULL);
	_exit(0);
}

static void channel_start_connect(struct channel *channel)
{
	int pair[2];
	pid_t child;

	channel->retry_ns = monotonic_now() + RETRY_MS * 1000000ull;
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
		return;
	child = fork();
	if (child == 0) {
		close(pair[0]);
		open_and_pass(channel, pair[1]);
	}
	close(pair[1]);
	if (child < 0)
		close(pair[0]);
	else
		channel_connected(channel, pair[0]);
}

static void attach_all(struct channel *channel)
{
	for (struct bridge_stream *stream = channel->bridge->streams; stream; stream = stream->next)
		if (stream->channel == channel && !stream->anchor && !stream->moved)
			channel_attach(stream);
}

/* The channel that the child has opened replaces the socket to the child. */
static void take_over(struct channel *channel, struct frame *frame)
{
	if (frame->nfds != 1 || !channel->ours)
		return;
	close(channel->sock);
	frame_reader_reset(&channel->reader);
	channel->lost_ns = 0;
	channel_connected(channel, frame->fds[0]);
	frame->fds[0] = -1;
	if (channel->sock >= 0)
		attach_all(channel);
}

void channel_for(struct bridge_stream *stream)
{
	struct bridge *bridge = stream->bridge;
	struct channel *channel = bridge->channels;

	while (channel &&
	       !(channel->ours && memcmp(channel->cookie, stream->about->cookie.data, BRIDGE_COOKIE) == 0))
		channel = channel->next;
	if (!channel) {
		channel = channel_add(bridge, -1);
		if (!channel)
			return;
		channel->ours = true;
		channel->lost_ns = monotonic_now();
		memcpy(channel->cookie, stream->about->cookie.data, BRIDGE_COOKIE);
		snprintf(channel->host, sizeof(channel->host), "%s", stream->about->host);
		channel_start_connect(channel);
	}
	stream->channel = channel;
}

void channel_retry(struct channel *channel)
{
	if (channel->ours && channel->sock < 0 && monotonic_now() >= channel->retry_ns)
		channel_start_connect(channel);
}

/* ---- output ---- */

/* Puts a small frame before the records. */
static void channel_tell(struct channel *channel, uint32_t type, const ProtobufCMessage *message)
{
	auto_free uint8_t *bytes = NULL;
	uint8_t *more;
	size_t len;

	if (channel->sock < 0 || frame_encode(type, message, 0, &bytes, &len, NULL) < 0)
		return;
	more = realloc(channel->control, channel->control_len + len);
	if (!more)
		return;
	channel->control = more;
	memcpy(more + channel->control_len, bytes, len);
	channel->control_len += len;
	channel_output(channel);
}

void channel_attach(struct bridge_stream *stream)
{
	Pbeam__BridgeAttach attach = PBEAM__BRIDGE_ATTACH__INIT;

	attach.stream = stream->id;
	attach.received = stream->expected;
	attach.generation = stream->generation;
	channel_tell(stream->channel, PBEAM__CHANNEL_MESSAGE__BRIDGE_ATTACH, &attach.base);
	/* Sends nothing before the reply says which records are missing. */
	stream->unsent = NULL;
	stream->attaching = true;
}

void channel_acknowledge(struct bridge_stream *stream)
{
	Pbeam__BridgeAttach ack = PBEAM__BRIDGE_ATTACH__INIT;

	if (stream->acked == stream->delivered || !stream->channel || stream->fresh || stream->held)
		return;
	ack.stream = stream->id;
	ack.received = stream->acked = stream->delivered;
	channel_tell(stream->channel, PBEAM__CHANNEL_MESSAGE__BRIDGE_ACK, &ack.base);
}

/* No record of a stream is sent before the other side knows of the stream. */
static bool stream_is_announced(const struct bridge_stream *stream)
{
	return !stream->anchor || !stream->of || !stream->of->head ||
	       stream->of->head->number > stream->opened;
}

static struct bridge_stream *next_stream(struct channel *channel, bool any)
{
	struct bridge_stream *stream = channel->bridge->streams;

	while (stream && !(stream->channel == channel && stream->unsent && !stream->held &&
			   stream_is_announced(stream) && (any || stream->turn != channel->bridge->turn)))
		stream = stream->next;
	return stream;
}

/* The next frame to go out. */
static bool next_frame(struct channel *channel)
{
	struct bridge *bridge = channel->bridge;
	struct bridge_stream *stream;

	channel->out_done = 0;
	if (channel->control) {
		channel->out = channel->control;
		channel->out_len = channel->control_len;
		channel->control = NULL;
		channel->control_len = 0;
		return true;
	}
	stream = next_stream(channel, false);
	if (!stream) {
		/* each stream has had a turn */
		stream = next_stream(channel, true);
		bridge->turn++;
	}
	if (!stream)
		return false;
	channel->out = malloc(stream->unsent->len);
	if (!channel->out)
		return false;
	memcpy(channel->out, stream->unsent->frame, stream->unsent->len);
	channel->out_len = stream->unsent->len;
	stream->unsent = stream->unsent->next;
	stream->turn = bridge->turn;
	return true;
}

void channel_output(struct channel *channel)
{
	while (channel->sock >= 0 && channel->writable && (channel->out || next_frame(channel))) {
		ssize_t n = frame_send_some(channel->sock, channel->out + channel->out_done,
					    channel->out_len - channel->out_done, NULL, 0);

		if (n == -EAGAIN) {
			channel->writable = false;
			return;
		}
		if (n < 0) {
			channel_lost(channel);
			return;
		}
		channel->out_done += (size_t)n;
		if (channel->out_done == channel->out_len) {
			free(channel->out);
			channel->out = NULL;
		}
	}
}

/* ---- input ---- */

/* A caller of the listener that is announced on this channel is announced on no other: the channel that the
 * listener had when it accepted the call may still be open, to a host that the program has left. */
static void announce_here(struct channel *channel, const struct bridge_stream *listener, uint64_t from)
{
	for (struct bridge_stream *stream = channel->bridge->streams; stream; stream = stream->next) {
		if (stream->of != listener || stream->opened < from)
			continue;
		stream->channel = channel;
		bridge_stream_rewind(stream, 0);
	}
}

static void channel_take_attach(struct channel *channel, const Pbeam__BridgeAttach *asked)
{
	struct bridge_stream *stream = bridge_stream_find(channel->bridge, channel, asked->stream);
	Pbeam__BridgeAttach answer = PBEAM__BRIDGE_ATTACH__INIT;

	answer.stream = asked->stream;
	answer.unknown = !stream || !stream->anchor || asked->generation < stream->generation;
	if (!answer.unknown) {
		stream->channel = channel;
		stream->generation = asked->generation;
		stream->acked = 0;
		bridge_stream_rewind(stream, asked->received);
		announce_here(channel, stream, asked->received);
		answer.received = stream->expected;
	}
	channel_tell(channel, PBEAM__CHANNEL_MESSAGE__BRIDGE_ATTACHED, &answer.base);
	if (!answer.unknown)
		bridge_stream_pump(stream);
}

static void channel_take_attached(struct channel *channel, const Pbeam__BridgeAttach *answer)
{
	struct bridge_stream *stream = bridge_stream_find(channel->bridge, channel, answer->stream);

	if (!stream || stream->channel != channel || stream->anchor || stream->held)
		return;
	stream->attaching = false;
	if (answer->unknown) {
		bridge_stream_drop_arrivals(stream);
		bridge_stream_acked(stream, UINT64_MAX);
		bridge_stream_reset(stream);
		return;
	}
	stream->acked = 0;
	bridge_stream_rewind(stream, answer->received);
	bridge_stream_pump(stream);
}

static int take_record(struct channel *channel, const struct frame *frame)
{
	Pbeam__BridgeRecord *record = (void *)frame_unpack(frame, &pbeam__bridge_record__descriptor, NULL);
	struct bridge_stream *stream =
		record ? bridge_stream_find(channel->bridge, channel, record->stream) : NULL;
	int r;

	if (!record)
		return -EPROTO;
	if (!stream) {
		/* the stream has ended here and has received everything */
		Pbeam__BridgeAttach ack = PBEAM__BRIDGE_ATTACH__INIT;

		ack.stream = record->stream;
		ack.received = record->number + 1;
		channel_tell(channel, PBEAM__CHANNEL_MESSAGE__BRIDGE_ACK, &ack.base);
	}
	if (!stream || stream->channel != channel || stream->moved) {
		pbeam__bridge_record__free_unpacked(record, NULL);
		return 0;
	}
	if (stream->over) {
		stream->expected = stream->delivered = record->number + 1;
		pbeam__bridge_record__free_unpacked(record, NULL);
		channel_acknowledge(stream);
		return 0;
	}
	r = bridge_stream_arrived(stream, record);
	if (r == 0)
		bridge_stream_pump(stream);
	return r;
}

static int channel_dispatch(struct channel *channel, struct frame *frame)
{
	Pbeam__BridgeAttach *attachment;
	struct bridge_stream *stream;

	if (frame->type == PBEAM__CHANNEL_MESSAGE__BRIDGE_CHANNEL) {
		take_over(channel, frame);
		return 0;
	}
	if (frame->type == PBEAM__CHANNEL_MESSAGE__BRIDGE_RECORD)
		return take_record(channel, frame);
	attachment = (void *)frame_unpack(frame, &pbeam__bridge_attach__descriptor, NULL);
	if (!attachment)
		return -EPROTO;
	if (frame->type == PBEAM__CHANNEL_MESSAGE__BRIDGE_ATTACH) {
		channel_take_attach(channel, attachment);
	} else if (frame->type == PBEAM__CHANNEL_MESSAGE__BRIDGE_ATTACHED) {
		channel_take_attached(channel, attachment);
	} else if (frame->type == PBEAM__CHANNEL_MESSAGE__BRIDGE_ACK) {
		stream = bridge_stream_find(channel->bridge, channel, attachment->stream);
		if (stream && stream->channel == channel) {
			bridge_stream_acked(stream, attachment->received);
			bridge_stream_pump(stream);
		}
	}
	message_free(attachment);
	return 0;
}

void channel_input(struct channel *channel)
{
	struct err err = ERR_INIT;
	int r = 1;

	while (channel->sock >= 0 && r > 0) {
		struct frame frame;

		r = frame_reader_step(&channel->reader, channel->sock, &frame, &err);
		if (r == 1) {
			int bad = channel_dispatch(channel, &frame);

			frame_free(&frame);
			if (bad < 0) {
				log_warn("bridge: the other side sent an unexpected message");
				r = bad;
			}
		}
	}
	if (r != -EAGAIN && channel->sock >= 0)
		channel_lost(channel);
}
