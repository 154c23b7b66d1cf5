/*
 * A bridge's own socket: local bridges bring channels, coordinators stop streams and take them along. What a
 * coordinator has stopped goes on when its connection ends, unless it has said that it has moved, or, of a
 * terminal's anchor, that the program is at home.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/dirs.h"
#include "base/log.h"
#include "proto/message.h"
#include "scip/bridge/bridge_stream.h"

int control_path(const uint8_t *cookie, char *buf, struct err *err)
{
	int r = dirs_runtime(buf, "bridge", err);
	size_t used;

	if (r < 0)
		return r;
	used = strlen(buf);
	if (used + 2 + BRIDGE_COOKIE * 2 >= PATH_MAX)
		return err_set(err, -ENAMETOOLONG, "%s is too long", buf);
	buf[used++] = '/';
	for (size_t i = 0; i < BRIDGE_COOKIE; i++)
		used += (size_t)sprintf(buf + used, "%02x", cookie[i]);
	return 0;
}

void control_accept(struct bridge *bridge)
{
	int sock;

	while ((sock = frame_accept(bridge->listener, NULL)) >= 0) {
		struct control *control = calloc(1, sizeof(*control));

		if (!control) {
			close(sock);
			return;
		}
		control->bridge = bridge;
		control->watch = (struct watch){WATCH_CONTROL, control};
		control->sock = sock;
		control->next = bridge->controls;
		bridge->controls = control;
		if (bridge_watch(bridge, sock, &control->watch, EPOLLIN) < 0)
			control_free(control);
	}
}

/* Resumes the streams that were stopped for this coordinator. */
static void control_resume_released(struct control *control)
{
	for (struct bridge_stream *stream = control->bridge->streams; stream; stream = stream->next) {
		if (stream->holder != control)
			continue;
		stream->held = stream->taken = false;
		stream->holder = NULL;
		stream->readable = stream->writable = true;
		if (!stream->anchor && stream->channel && stream->channel->sock >= 0)
			channel_attach(stream);
		bridge_stream_pump(stream);
	}
}

void control_free(struct control *control)
{
	struct control **at = &control->bridge->controls;

	while (*at && *at != control)
		at = &(*at)->next;
	if (*at)
		*at = control->next;
	for (struct bridge_stream *stream = control->bridge->streams; stream; stream = stream->next)
		if (stream->waiter == control)
			stream->waiter = NULL;
	control_resume_released(control);
	close(control->sock);
	frame_reader_reset(&control->reader);
	free(control);
}

static void control_send_reply(struct control *control, uint32_t type, const ProtobufCMessage *message,
			       const int *fds, int nfds)
{
	/* True if a coordinator waits for the stream. */
	(void)!frame_send(control->sock, type, message, fds, nfds, NULL);
}

/* A stream of an anchor is identified by the bridge's cookie and its own id. */
static Pbeam__BridgeStream *describe_anchor(const struct bridge_stream *stream, bool whole)
{
	Pbeam__BridgeStream *out = bridge_stream_describe(stream, whole);

	if (!out)
		return NULL;
	out->anchor = true;
	if (message_bytes(&out->cookie, stream->bridge->cookie, BRIDGE_COOKIE) < 0) {
		message_free(out);
		return NULL;
	}
	return out;
}

static void control_list_streams(struct control *control, bool anchors)
{
	Pbeam__BridgeList *out = message_new(&pbeam__bridge_list__descriptor);

	for (struct bridge_stream *stream = control->bridge->streams; out && stream; stream = stream->next) {
		Pbeam__BridgeStream *item = NULL;

		if (anchors && stream->anchor && !stream->over)
			item = describe_anchor(stream, false);
		if (!anchors && !stream->anchor && !stream->over && listener_accepted(stream))
			item = bridge_stream_describe(stream, false);
		if (item && message_append(&out->streams, &out->n_streams, &item->base) < 0)
			break;
	}
	control_send_reply(control, PBEAM__CHANNEL_MESSAGE__BRIDGE_LISTED, out ? &out->base : NULL, NULL, 0);
	message_free(out);
}

/* Returns the first such stream, or the one after `last`. A listener that has been on several hosts has
 * several. */
static struct bridge_stream *stream_find_inode(struct bridge *bridge, const struct bridge_stream *last,
					       uint64_t ino)
{
	struct bridge_stream *stream = last ? last->next : bridge->streams;

	while (stream && (stream->anchor || stream->over || stream->ino != ino))
		stream = stream->next;
	return stream;
}

static void hold_stream(struct control *control, struct bridge_stream *stream)
{
	stream->held = true;
	stream->holder = control;
}

static void control_hold_streams(struct control *control, uint64_t ino)
{
	struct bridge_stream *stream = stream_find_inode(control->bridge, NULL, ino);

	if (!stream || stream->held) {
		control_send_reply(control, PBEAM__CHANNEL_MESSAGE__BRIDGE_NONE, NULL, NULL, 0);
		return;
	}
	for (struct bridge_stream *each = stream; each;
	     each = stream_find_inode(control->bridge, each, ino)) {
		hold_stream(control, each);
		for (struct bridge_stream *other = control->bridge->streams; other; other = other->next)
			if (other->of == each && !other->held && !listener_accepted(other))
				hold_stream(control, other);
	}
	control_send_reply(control, PBEAM__CHANNEL_MESSAGE__BRIDGE_HELD, NULL, &stream->fd, stream->fd >= 0);
}

/* Restarts connections that the program has not accepted: they begin again on its next host. */
static int describe_pending(struct control *control, const struct bridge_stream *listener,
			    Pbeam__BridgeStream *out)
{
	for (struct bridge_stream *stream = control->bridge->streams; stream; stream = stream->next) {
		Pbeam__BridgeStream *item;

		if (stream->of != listener || !stream->fresh || stream->holder != control)
			continue;
		item = bridge_stream_describe(stream, false);
		if (!item)
			return -ENOMEM;
		item->received = item->partial = item->sent = 0;
		stream->taken = true;
		if (message_append(&out->pending, &out->n_pending, &item->base) < 0)
			return -ENOMEM;
	}
	return 0;
}

static Pbeam__BridgeStream *take_stream(struct control *control, struct bridge_stream *stream)
{
	Pbeam__BridgeStream *out;

	bridge_stream_drain(stream);
	out = bridge_stream_describe(stream, true);
	if (out && describe_pending(control, stream, out) < 0) {
		message_free(out);
		return NULL;
	}
	stream->taken = true;
	return out;
}

/* Takes all streams of this socket as one. */
static void control_take(struct control *control, uint64_t ino)
{
	Pbeam__BridgeStream *out = NULL;

	for (struct bridge_stream *stream = stream_find_inode(control->bridge, NULL, ino); stream;
	     stream = stream_find_inode(control->bridge, stream, ino)) {
		Pbeam__BridgeStream *one = stream->holder == control ? take_stream(control, stream) : NULL;

		if (one && out && message_append(&out->more, &out->n_more, &one->base) < 0)
			one = NULL;
		if (!one) {
			message_free(out);
			out = NULL;
			break;
		}
		if (!out)
			out = one;
	}
	if (out)
		control_send_reply(control, PBEAM__CHANNEL_MESSAGE__BRIDGE_TAKEN, &out->base, NULL, 0);
	else
		control_send_reply(control, PBEAM__CHANNEL_MESSAGE__BRIDGE_NONE, NULL, NULL, 0);
	message_free(out);
}

/* HOLD and TAKE of an anchor's stream: a coordinator examines both ends and releases them. */
static void serve_anchor(struct control *control, uint32_t type, uint64_t id)
{
	struct bridge_stream *stream = control->bridge->streams;
	Pbeam__BridgeStream *out;

	while (stream && !(stream->anchor && !stream->over && stream->id == id))
		stream = stream->next;
	if (stream && type == PBEAM__CHANNEL_MESSAGE__BRIDGE_HOLD && !stream->held) {
		hold_stream(control, stream);
		control_send_reply(control, PBEAM__CHANNEL_MESSAGE__BRIDGE_HELD, NULL, NULL, 0);
		return;
	}
	if (stream && type == PBEAM__CHANNEL_MESSAGE__BRIDGE_TAKE && stream->holder == control) {
		bridge_stream_drain(stream);
		out = describe_anchor(stream, true);
		if (out) {
			control_send_reply(control, PBEAM__CHANNEL_MESSAGE__BRIDGE_TAKEN, &out->base, NULL,
					   0);
			message_free(out);
			return;
		}
	}
	control_send_reply(control, PBEAM__CHANNEL_MESSAGE__BRIDGE_NONE, NULL, NULL, 0);
}

static void control_drop(struct control *control)
{
	for (struct bridge_stream *stream = control->bridge->streams; stream; stream = stream->next) {
		if (stream->holder == control && stream->taken)
			bridge_stream_forget(stream);
	}
	control_send_reply(control, PBEAM__CHANNEL_MESSAGE__BRIDGE_DROPPED, NULL, NULL, 0);
}

/* ---- terminals: until nothing is on its way, and back to where they were ---- */

static bool control_awaits_flush(const struct control *control)
{
	const struct bridge_stream *stream = control->bridge->streams;

	while (stream && stream->waiter != control)
		stream = stream->next;
	return stream != NULL;
}

/* True if an anchor has written everything, or a float's other side has received everything. */
void control_settled(struct bridge_stream *stream)
{
	struct control *control = stream->waiter;

	if (!control || (stream->anchor ? stream->first != NULL : stream->head != NULL))
		return;
	stream->waiter = NULL;
	if (stream->anchor)
		control_send_reply(control,
				   stream->fd >= 0 ? PBEAM__CHANNEL_MESSAGE__BRIDGE_HELD
						   : PBEAM__CHANNEL_MESSAGE__BRIDGE_NONE,
				   NULL, &stream->fd, stream->fd >= 0);
	else if (!control_awaits_flush(control))
		control_send_reply(control, PBEAM__CHANNEL_MESSAGE__BRIDGE_DROPPED, NULL, NULL, 0);
}

static void control_flush(struct control *control, int32_t vpid)
{
	bool any = false;

	for (struct bridge_stream *stream = control->bridge->streams; stream; stream = stream->next)
		if (!stream->anchor && bridge_stream_is_terminal(stream) && stream->about->vpid == vpid &&
		    !stream->moved) {
			stream->waiter = control;
			any = true;
		}
	if (!any)
		control_send_reply(control, PBEAM__CHANNEL_MESSAGE__BRIDGE_DROPPED, NULL, NULL, 0);
	for (struct bridge_stream *stream = control->bridge->streams; stream; stream = stream->next)
		if (stream->waiter == control) {
			stream->readable = true;
			bridge_stream_pump(stream);
		}
}

/* The output of the program on the other host is the log that came with it. */
static int take_home(struct bridge_stream *stream, const Pbeam__BridgeStream *home)
{
	int r = 0;

	for (size_t i = 0; i < home->n_unacked && r == 0; i++) {
		Pbeam__BridgeRecord *record = bridge_stream_record(&home->unacked[i]);

		r = record ? bridge_stream_arrived(stream, record) : -EPROTO;
	}
	return r;
}

/* None of this has to be undone: the program has written it, on whichever host it continues. */
static void control_bring_home(struct control *control, const Pbeam__BridgeStream *home)
{
	struct bridge_stream *stream = control->bridge->streams;

	while (stream && !(stream->anchor && stream->id == home->id))
		stream = stream->next;
	if (!stream || !bridge_stream_is_terminal(stream) || stream->fd < 0 || stream->closing ||
	    stream->holder || home->generation < stream->generation || take_home(stream, home) < 0) {
		control_send_reply(control, PBEAM__CHANNEL_MESSAGE__BRIDGE_NONE, NULL, NULL, 0);
		return;
	}
	stream->holder = stream->waiter = control;
	bridge_stream_pump(stream);
}

static void control_resume(struct control *control)
{
	struct bridge_stream *stream = control->bridge->streams;
	Pbeam__BridgeStream *out = NULL;

	while (stream && !(stream->anchor && stream->holder == control))
		stream = stream->next;
	if (stream) {
		bridge_stream_drain(stream);
		out = bridge_stream_describe(stream, true);
		bridge_stream_forget(stream);
		stream->moved = false; /* no bridge can take it over */
		stream->holder = NULL;
	}
	control_send_reply(control,
			   out ? PBEAM__CHANNEL_MESSAGE__BRIDGE_TAKEN : PBEAM__CHANNEL_MESSAGE__BRIDGE_NONE,
			   out ? &out->base : NULL, NULL, 0);
	message_free(out);
}

static void dispatch_home(struct control *control, const struct frame *frame)
{
	Pbeam__BridgeStream *home = (void *)frame_unpack(frame, &pbeam__bridge_stream__descriptor, NULL);

	if (home)
		control_bring_home(control, home);
	message_free(home);
}

static void control_dispatch(struct control *control, struct frame *frame)
{
	Pbeam__BridgeSelect *select;

	switch (frame->type) {
	case PBEAM__CHANNEL_MESSAGE__BRIDGE_CHANNEL:
		if (frame->nfds == 1 && channel_add(control->bridge, frame->fds[0]))
			frame->fds[0] = -1;
		return;
	case PBEAM__CHANNEL_MESSAGE__BRIDGE_DROP:
		control_drop(control);
		return;
	case PBEAM__CHANNEL_MESSAGE__BRIDGE_RETURN:
		dispatch_home(control, frame);
		return;
	case PBEAM__CHANNEL_MESSAGE__BRIDGE_RESUME:
		control_resume(control);
		return;
	default:
		break;
	}
	select = (void *)frame_unpack(frame, &pbeam__bridge_select__descriptor, NULL);
	if (!select)
		return;
	if (frame->type == PBEAM__CHANNEL_MESSAGE__BRIDGE_LIST)
		control_list_streams(control, select->anchors);
	else if (select->anchor)
		serve_anchor(control, frame->type, select->anchor);
	else if (frame->type == PBEAM__CHANNEL_MESSAGE__BRIDGE_HOLD)
		control_hold_streams(control, select->ino);
	else if (frame->type == PBEAM__CHANNEL_MESSAGE__BRIDGE_TAKE)
		control_take(control, select->ino);
	else if (frame->type == PBEAM__CHANNEL_MESSAGE__BRIDGE_FLUSH)
		control_flush(control, select->vpid);
	message_free(select);
}

void control_input(struct control *control)
{
	struct frame frame;
	/* Reads one frame of a local program of the same user. */
	int r = frame_recv(control->sock, &frame, NULL);

	if (r != 1) {
		control->dead = true; /* an event of it may follow in this round */
		return;
	}
	control_dispatch(control, &frame);
	frame_free(&frame);
}

/* Reports to users and pbeamd which programs depend on which host. */
void control_describe(struct bridge *bridge)
{
	char path[PATH_MAX + 16], beside[PATH_MAX + 24];
	auto_fclose FILE *f = NULL;

	bridge->changed = false;
	snprintf(path, sizeof(path), "%s.lines", bridge->path);
	snprintf(beside, sizeof(beside), "%s.new", path);
	f = fopen(beside, "we");
	if (!f)
		return;
	fprintf(f, "process\t%d\n", (int)getpid());
	for (const struct bridge_stream *stream = bridge->streams; stream; stream = stream->next)
		if (!stream->over)
			fprintf(f, "%s\t%d\t%s\t%s\n", stream->anchor ? "anchor" : "float",
				stream->about->vpid, stream->about->program, stream->about->text);
	if (fflush(f) != 0 || ferror(f) || rename(beside, path) < 0)
		unlink(beside);
}
