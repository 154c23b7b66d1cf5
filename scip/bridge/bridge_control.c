/*
 * A bridge's own socket: local bridges bring channels, coordinators stop lines and take them along. What a
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
#include "scip/bridge/bridge_line.h"

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

/* What stood still for it goes on. */
static void go_on(struct control *control)
{
	for (struct line *line = control->bridge->lines; line; line = line->next) {
		if (line->holder != control)
			continue;
		line->held = line->taken = false;
		line->holder = NULL;
		line->readable = line->writable = true;
		if (!line->anchor && line->channel && line->channel->sock >= 0)
			channel_attach(line);
		line_pump(line);
	}
}

void control_free(struct control *control)
{
	struct control **at = &control->bridge->controls;

	while (*at && *at != control)
		at = &(*at)->next;
	if (*at)
		*at = control->next;
	for (struct line *line = control->bridge->lines; line; line = line->next)
		if (line->waiter == control)
			line->waiter = NULL;
	go_on(control);
	close(control->sock);
	frame_reader_reset(&control->reader);
	free(control);
}

static void answer(struct control *control, uint32_t type, const ProtobufCMessage *message, const int *fds,
		   int nfds)
{
	/* A coordinator waits for it. */
	(void)!frame_send(control->sock, type, message, fds, nfds, NULL);
}

/* An anchor's own line is named by the bridge's cookie and its id. */
static Pbeam__BridgeLine *describe_anchor(const struct line *line, bool whole)
{
	Pbeam__BridgeLine *out = line_describe(line, whole);

	if (!out)
		return NULL;
	out->anchor = true;
	if (message_bytes(&out->cookie, line->bridge->cookie, BRIDGE_COOKIE) < 0) {
		message_free(out);
		return NULL;
	}
	return out;
}

static void list(struct control *control, bool anchors)
{
	Pbeam__BridgeList *out = message_new(&pbeam__bridge_list__descriptor);

	for (struct line *line = control->bridge->lines; out && line; line = line->next) {
		Pbeam__BridgeLine *item = NULL;

		if (anchors && line->anchor && !line->over)
			item = describe_anchor(line, false);
		if (!anchors && !line->anchor && !line->over && listener_accepted(line))
			item = line_describe(line, false);
		if (item && message_append(&out->lines, &out->n_lines, &item->base) < 0)
			break;
	}
	answer(control, PBEAM__CHANNEL_MESSAGE__BRIDGE_LISTED, out ? &out->base : NULL, NULL, 0);
	message_free(out);
}

/* The first, or the one after `last`: a listener has several where it has been on several hosts. */
static struct line *find(struct bridge *bridge, const struct line *last, uint64_t ino)
{
	struct line *line = last ? last->next : bridge->lines;

	while (line && (line->anchor || line->over || line->ino != ino))
		line = line->next;
	return line;
}

static void hold_line(struct control *control, struct line *line)
{
	line->held = true;
	line->holder = control;
}

static void hold(struct control *control, uint64_t ino)
{
	struct line *line = find(control->bridge, NULL, ino);

	if (!line || line->held) {
		answer(control, PBEAM__CHANNEL_MESSAGE__BRIDGE_NONE, NULL, NULL, 0);
		return;
	}
	for (struct line *each = line; each; each = find(control->bridge, each, ino)) {
		hold_line(control, each);
		for (struct line *other = control->bridge->lines; other; other = other->next)
			if (other->of == each && !other->held && !listener_accepted(other))
				hold_line(control, other);
	}
	answer(control, PBEAM__CHANNEL_MESSAGE__BRIDGE_HELD, NULL, &line->fd, line->fd >= 0);
}

/* Connections that the program has not accepted: they begin again where it goes. */
static int describe_pending(struct control *control, const struct line *listener, Pbeam__BridgeLine *out)
{
	for (struct line *line = control->bridge->lines; line; line = line->next) {
		Pbeam__BridgeLine *item;

		if (line->of != listener || !line->fresh || line->holder != control)
			continue;
		item = line_describe(line, false);
		if (!item)
			return -ENOMEM;
		item->received = item->partial = item->sent = 0;
		line->taken = true;
		if (message_append(&out->pending, &out->n_pending, &item->base) < 0)
			return -ENOMEM;
	}
	return 0;
}

static Pbeam__BridgeLine *take_line(struct control *control, struct line *line)
{
	Pbeam__BridgeLine *out;

	line_drain(line);
	out = line_describe(line, true);
	if (out && describe_pending(control, line, out) < 0) {
		message_free(out);
		return NULL;
	}
	line->taken = true;
	return out;
}

/* All lines of this socket as one. */
static void take(struct control *control, uint64_t ino)
{
	Pbeam__BridgeLine *out = NULL;

	for (struct line *line = find(control->bridge, NULL, ino); line;
	     line = find(control->bridge, line, ino)) {
		Pbeam__BridgeLine *one = line->holder == control ? take_line(control, line) : NULL;

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
		answer(control, PBEAM__CHANNEL_MESSAGE__BRIDGE_TAKEN, &out->base, NULL, 0);
	else
		answer(control, PBEAM__CHANNEL_MESSAGE__BRIDGE_NONE, NULL, NULL, 0);
	message_free(out);
}

/* HOLD and TAKE of an anchor's line: a coordinator looks at both its ends, and lets go. */
static void serve_anchor(struct control *control, uint32_t type, uint64_t id)
{
	struct line *line = control->bridge->lines;
	Pbeam__BridgeLine *out;

	while (line && !(line->anchor && !line->over && line->id == id))
		line = line->next;
	if (line && type == PBEAM__CHANNEL_MESSAGE__BRIDGE_HOLD && !line->held) {
		hold_line(control, line);
		answer(control, PBEAM__CHANNEL_MESSAGE__BRIDGE_HELD, NULL, NULL, 0);
		return;
	}
	if (line && type == PBEAM__CHANNEL_MESSAGE__BRIDGE_TAKE && line->holder == control) {
		line_drain(line);
		out = describe_anchor(line, true);
		if (out) {
			answer(control, PBEAM__CHANNEL_MESSAGE__BRIDGE_TAKEN, &out->base, NULL, 0);
			message_free(out);
			return;
		}
	}
	answer(control, PBEAM__CHANNEL_MESSAGE__BRIDGE_NONE, NULL, NULL, 0);
}

static void drop(struct control *control)
{
	for (struct line *line = control->bridge->lines; line; line = line->next) {
		if (line->holder == control && line->taken)
			line_forget(line);
	}
	answer(control, PBEAM__CHANNEL_MESSAGE__BRIDGE_DROPPED, NULL, NULL, 0);
}

/* ---- terminals: until nothing is on its way, and back to where they were ---- */

static bool awaits(const struct control *control)
{
	const struct line *line = control->bridge->lines;

	while (line && line->waiter != control)
		line = line->next;
	return line != NULL;
}

/* An anchor has written all that it has, a float's other side has all. */
void control_settled(struct line *line)
{
	struct control *control = line->waiter;

	if (!control || (line->anchor ? line->first != NULL : line->head != NULL))
		return;
	line->waiter = NULL;
	if (line->anchor)
		answer(control,
		       line->fd >= 0 ? PBEAM__CHANNEL_MESSAGE__BRIDGE_HELD
				     : PBEAM__CHANNEL_MESSAGE__BRIDGE_NONE,
		       NULL, &line->fd, line->fd >= 0);
	else if (!awaits(control))
		answer(control, PBEAM__CHANNEL_MESSAGE__BRIDGE_DROPPED, NULL, NULL, 0);
}

static void flush(struct control *control, int32_t vpid)
{
	bool any = false;

	for (struct line *line = control->bridge->lines; line; line = line->next)
		if (!line->anchor && line_is_terminal(line) && line->about->vpid == vpid && !line->moved) {
			line->waiter = control;
			any = true;
		}
	if (!any)
		answer(control, PBEAM__CHANNEL_MESSAGE__BRIDGE_DROPPED, NULL, NULL, 0);
	for (struct line *line = control->bridge->lines; line; line = line->next)
		if (line->waiter == control) {
			line->readable = true;
			line_pump(line);
		}
}

/* What the program wrote elsewhere, as the log that came with it. */
static int take_home(struct line *line, const Pbeam__BridgeLine *home)
{
	int r = 0;

	for (size_t i = 0; i < home->n_unacked && r == 0; i++) {
		Pbeam__BridgeRecord *record = line_record(&home->unacked[i]);

		r = record ? line_arrived(line, record) : -EPROTO;
	}
	return r;
}

/* Nothing of this would have to be undone: the program has written it, wherever it goes on. */
static void come_home(struct control *control, const Pbeam__BridgeLine *home)
{
	struct line *line = control->bridge->lines;

	while (line && !(line->anchor && line->id == home->id))
		line = line->next;
	if (!line || !line_is_terminal(line) || line->fd < 0 || line->closing || line->holder ||
	    home->generation < line->generation || take_home(line, home) < 0) {
		answer(control, PBEAM__CHANNEL_MESSAGE__BRIDGE_NONE, NULL, NULL, 0);
		return;
	}
	line->holder = line->waiter = control;
	line_pump(line);
}

static void resume(struct control *control)
{
	struct line *line = control->bridge->lines;
	Pbeam__BridgeLine *out = NULL;

	while (line && !(line->anchor && line->holder == control))
		line = line->next;
	if (line) {
		line_drain(line);
		out = line_describe(line, true);
		line_forget(line);
		line->moved = false; /* no bridge takes it over any more */
		line->holder = NULL;
	}
	answer(control, out ? PBEAM__CHANNEL_MESSAGE__BRIDGE_TAKEN : PBEAM__CHANNEL_MESSAGE__BRIDGE_NONE,
	       out ? &out->base : NULL, NULL, 0);
	message_free(out);
}

static void dispatch_home(struct control *control, const struct frame *frame)
{
	Pbeam__BridgeLine *home = (void *)frame_unpack(frame, &pbeam__bridge_line__descriptor, NULL);

	if (home)
		come_home(control, home);
	message_free(home);
}

static void dispatch(struct control *control, struct frame *frame)
{
	Pbeam__BridgeSelect *select;

	switch (frame->type) {
	case PBEAM__CHANNEL_MESSAGE__BRIDGE_CHANNEL:
		if (frame->nfds == 1 && channel_add(control->bridge, frame->fds[0]))
			frame->fds[0] = -1;
		return;
	case PBEAM__CHANNEL_MESSAGE__BRIDGE_DROP:
		drop(control);
		return;
	case PBEAM__CHANNEL_MESSAGE__BRIDGE_RETURN:
		dispatch_home(control, frame);
		return;
	case PBEAM__CHANNEL_MESSAGE__BRIDGE_RESUME:
		resume(control);
		return;
	default:
		break;
	}
	select = (void *)frame_unpack(frame, &pbeam__bridge_select__descriptor, NULL);
	if (!select)
		return;
	if (frame->type == PBEAM__CHANNEL_MESSAGE__BRIDGE_LIST)
		list(control, select->anchors);
	else if (select->anchor)
		serve_anchor(control, frame->type, select->anchor);
	else if (frame->type == PBEAM__CHANNEL_MESSAGE__BRIDGE_HOLD)
		hold(control, select->ino);
	else if (frame->type == PBEAM__CHANNEL_MESSAGE__BRIDGE_TAKE)
		take(control, select->ino);
	else if (frame->type == PBEAM__CHANNEL_MESSAGE__BRIDGE_FLUSH)
		flush(control, select->vpid);
	message_free(select);
}

void control_input(struct control *control)
{
	struct frame frame;
	/* One frame of a local program of the same user: read to its end. */
	int r = frame_recv(control->sock, &frame, NULL);

	if (r != 1) {
		control->dead = true; /* an event of it may follow in this round */
		return;
	}
	dispatch(control, &frame);
	frame_free(&frame);
}

/* For users and for pbeamd: which programs depend on which host. */
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
	for (const struct line *line = bridge->lines; line; line = line->next)
		if (!line->over)
			fprintf(f, "%s\t%d\t%s\t%s\n", line->anchor ? "anchor" : "float", line->about->vpid,
				line->about->program, line->about->text);
	if (fflush(f) == 0)
		(void)!rename(beside, path);
}
