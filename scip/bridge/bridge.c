/* A bridge's construction, start and loop. bridge.h explains it. */
#include "scip/bridge/bridge.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "base/log.h"
#include "channel/channel.h"
#include "proto/message.h"
#include "scip/bridge/bridge_stream.h"
#include "scip/object/common.h"
#include "scip/object/terminal.h"

enum { EVENTS = 64, TICK_MS = 1000, SOON_MS = 50, LAST_MS = 500, TERMINAL_MS = 200 };

struct bridge *bridge_new(const uint8_t *cookie)
{
	struct bridge *bridge = calloc(1, sizeof(*bridge));

	if (!bridge)
		return NULL;
	bridge->epoll = bridge->listener = bridge->expecting = -1;
	bridge->next_id = 1;
	bridge->listener_watch.kind = WATCH_LISTENER;
	bridge->expecting_watch.kind = WATCH_EXPECTING;
	if (cookie)
		memcpy(bridge->cookie, cookie, BRIDGE_COOKIE);
	else if (getrandom(bridge->cookie, BRIDGE_COOKIE, 0) != BRIDGE_COOKIE) {
		free(bridge);
		return NULL;
	}
	return bridge;
}

static void free_stream(struct bridge_stream *stream)
{
	struct bridge_stream **at = &stream->bridge->streams;

	while (*at && *at != stream)
		at = &(*at)->next;
	if (*at)
		*at = stream->next;
	control_settled(stream);
	listener_forget(stream);
	port_free(stream);
	terminal_end(stream);
	free(stream->typed.data);
	for (struct bridge_stream *other = stream->bridge->streams; other; other = other->next)
		if (other->of == stream)
			other->of = NULL;
	stream->bridge->changed = true;
	if (stream->fd >= 0)
		close(stream->fd);
	bridge_stream_free_log(stream);
	bridge_stream_drop_arrivals(stream);
	message_free(stream->about);
	free(stream);
}

void bridge_free(struct bridge *bridge)
{
	if (!bridge)
		return;
	while (bridge->controls)
		control_free(bridge->controls);
	while (bridge->channels)
		channel_free(bridge->channels);
	while (bridge->streams)
		free_stream(bridge->streams);
	if (bridge->epoll >= 0)
		close(bridge->epoll);
	if (bridge->listener >= 0)
		close(bridge->listener);
	if (bridge->expecting >= 0)
		close(bridge->expecting);
	free(bridge);
}

void bridge_set_names(struct bridge *bridge, struct names *names)
{
	bridge->names = names;
}

const uint8_t *bridge_cookie(const struct bridge *bridge)
{
	return bridge->cookie;
}

size_t bridge_streams(const struct bridge *bridge)
{
	size_t n = 0;

	for (const struct bridge_stream *stream = bridge->streams; stream; stream = stream->next)
		n++;
	return n;
}

/* A pipe or a terminal is opened again: the flags of its description belong to the program and to holders
 * that stay. A terminal's master (it has no other name) is the bridge's own. */
static int own_description(const Pbeam__BridgeStream *stream, int fd, bool *socket, struct err *err)
{
	int mode = stream->reads && stream->writes ? O_RDWR : stream->reads ? O_RDONLY : O_WRONLY;
	struct stat st;
	int again;

	if (fd < 0 || fstat(fd, &st) < 0)
		return err_sys(err, "a descriptor of a bridge");
	*socket = S_ISSOCK(st.st_mode);
	if (*socket)
		return fd;
	if (terminal_is_master(&st))
		return object_set_nonblock(fd, true) < 0 ? err_sys(err, "a terminal's master") : fd;
	again = object_reopen(fd, mode | O_NONBLOCK | (stream->packet && stream->writes ? O_DIRECT : 0));
	if (again < 0)
		return err_code(err, again, "open an end of a pipe or a terminal again");
	close(fd);
	return again;
}

int bridge_add_anchor(struct bridge *bridge, const Pbeam__BridgeStream *about, int fd, uint64_t skip,
		      uint64_t *id, struct err *err)
{
	bool socket;
	int own = own_description(about, fd, &socket, err);
	struct bridge_stream *stream = own >= 0 ? bridge_stream_new(bridge, about, own, true) : NULL;

	if (!stream) {
		if (own != -EBADF && fd >= 0)
			close(own >= 0 ? own : fd);
		return own < 0 ? own : err_code(err, -ENOMEM, "bridge");
	}
	stream->socket = socket;
	stream->skip = skip;
	*id = stream->id = bridge->next_id++;
	return 0;
}

void bridge_anchor_typed(struct bridge *bridge, uint64_t id, struct pty_bytes *typed)
{
	for (struct bridge_stream *stream = bridge->streams; stream; stream = stream->next)
		if (stream->id == id) {
			stream->typed = *typed;
			*typed = (struct pty_bytes){0};
		}
}

/* Adds the frames of the log that the program brought along. */
static int take_log(struct bridge_stream *stream, const Pbeam__BridgeStream *about, struct err *err)
{
	for (size_t i = 0; i < about->n_unacked; i++) {
		uint64_t number = about->sent - about->n_unacked + i;
		int r = bridge_stream_append_frame(stream, about->unacked[i].data, about->unacked[i].len,
						   number);

		if (r < 0)
			return err_code(err, r, "bridge");
	}
	return 0;
}

int bridge_renew_anchor(struct bridge *bridge, const Pbeam__BridgeStream *about, int fd, struct err *err)
{
	bool socket = true;
	int own = own_description(about, fd, &socket, err);
	struct bridge_stream *stream;

	if (own < 0) {
		close(fd);
		return own;
	}
	stream = about->n_unacked <= about->sent ? bridge_stream_new(bridge, about, own, true) : NULL;
	if (!stream) {
		close(own);
		return err_set(err, -EBADMSG, "the record of a bridge is malformed");
	}
	stream->socket = socket;
	stream->ino = bridge_stream_socket_ino(own);
	if (socket && !about->writes)
		shutdown(own, SHUT_WR); /* the other side's writer has ended */
	return take_log(stream, about, err);
}

int bridge_add_float(struct bridge *bridge, const Pbeam__BridgeStream *about, int fd, uint64_t ino,
		     struct err *err)
{
	bool listens = about->kind == PBEAM__BRIDGE_STREAM__KIND__LISTENER, socket = true;
	int own = listens ? -1 : own_description(about, fd, &socket, err);
	struct bridge_stream *stream;

	if (about->cookie.len != BRIDGE_COOKIE || about->n_unacked > about->sent)
		return err_set(err, -EBADMSG, "the record of a bridge is malformed");
	if (!listens && own < 0)
		return own;
	stream = bridge_stream_new(bridge, about, own, false);
	if (!stream) {
		if (own >= 0)
			close(own);
		return err_code(err, -ENOMEM, "bridge");
	}
	stream->socket = socket;
	stream->ino = ino;
	stream->attaching = true;
	if (own >= 0 && socket && !about->writes)
		shutdown(own, SHUT_WR); /* the other side's writer had ended */
	for (size_t i = 0; i < about->n_pending && listens; i++)
		if (!listener_connect(stream, about->pending[i]))
			log_info("bridge: %s must wait", about->pending[i]->text);
	return take_log(stream, about, err);
}

void bridge_expect(struct bridge *bridge, int expecting)
{
	bridge->expecting = expecting;
}

/* ---- starting ---- */

static bool bridge_owns_descriptor(const struct bridge *bridge, int fd)
{
	if (fd == bridge->expecting || fd == bridge->listener)
		return true;
	for (const struct bridge_stream *stream = bridge->streams; stream; stream = stream->next)
		if (stream->fd == fd || port_has(stream, fd))
			return true;
	return false;
}

/* Closes all descriptors of the coordinator: sockets of scips, images, connections. */
static void close_others(const struct bridge *bridge)
{
	int null = open("/dev/null", O_RDWR);
	DIR *dir = opendir("/proc/self/fd");
	struct dirent *entry;

	for (int i = 0; i < 3 && null >= 0; i++)
		dup2(null, i);
	while (dir && (entry = readdir(dir)) != NULL) {
		int fd = atoi(entry->d_name);

		if (fd > 2 && fd != dirfd(dir) && !bridge_owns_descriptor(bridge, fd))
			close(fd);
	}
	if (dir)
		closedir(dir);
}

static void bridge_become_process(struct bridge *bridge)
{
	sigset_t none;

	close_others(bridge);
	log_open_shared("scip");
	for (int i = 1; i < SIGRTMIN; i++)
		signal(i, SIG_DFL);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	signal(SIGPIPE, SIG_IGN);
	signal(SIGHUP, SIG_IGN);
	signal(SIGINT, SIG_IGN);
	signal(SIGCHLD, SIG_IGN);
	prctl(PR_SET_NAME, BRIDGE_COMM);
	prctl(PR_SET_PDEATHSIG, 0);
	(void)!chdir("/");
}

/* Made before the fork, so that the next coordinator finds it. */
static int listen_for_control(struct bridge *bridge, struct err *err)
{
	int r = control_path(bridge->cookie, bridge->path, err);

	if (r < 0)
		return r;
	bridge->listener = frame_listen(bridge->path, err);
	if (bridge->listener < 0)
		return bridge->listener;
	(void)!object_set_nonblock(bridge->listener, true);
	return 0;
}

/* ---- the loop ---- */

static bool stream_listens(const struct bridge_stream *stream)
{
	return stream->about->kind == PBEAM__BRIDGE_STREAM__KIND__LISTENER;
}

static int open_all(struct bridge *bridge)
{
	int r;

	bridge->epoll = epoll_create1(EPOLL_CLOEXEC);
	if (bridge->epoll < 0)
		return -errno;
	r = bridge_watch(bridge, bridge->listener, &bridge->listener_watch, EPOLLIN);
	if (r == 0 && bridge->expecting >= 0)
		r = bridge_watch(bridge, bridge->expecting, &bridge->expecting_watch, EPOLLIN);
	for (struct bridge_stream *stream = bridge->streams; stream && r == 0; stream = stream->next) {
		stream->lost_ns = io_now_ns(CLOCK_MONOTONIC);
		/* Not before the commit: the description is the program's own. */
		if (stream->fd >= 0 && stream_listens(stream))
			(void)!object_set_nonblock(stream->fd, true);
		if (stream->fd >= 0 && bridge_stream_is_terminal(stream))
			r = terminal_begin(stream);
		if (stream->fd >= 0 && r == 0)
			r = bridge_watch(bridge, stream->fd, &stream->watch,
					 EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET);
		if (r == 0)
			r = port_watch(stream);
		if (!stream->anchor)
			channel_for(stream);
	}
	return r;
}

static void take_channel(struct bridge *bridge)
{
	struct err err = ERR_INIT;
	int sock = channel_take(bridge->expecting, 0, &err);

	if (sock >= 0) {
		(void)!channel_add(bridge, sock);
	} else if (sock != -EAGAIN && sock != -ETIMEDOUT) {
		/* pbeamd has ended; existing channels stay. */
		close(bridge->expecting);
		bridge->expecting = -1;
	}
}

static void bridge_handle_event(struct bridge *bridge, const struct watch *watch, uint32_t events)
{
	struct bridge_stream *stream;
	struct channel *channel;

	switch (watch->kind) {
	case WATCH_LINE:
		stream = watch->owner;
		stream->readable = stream->readable || events & (EPOLLIN | EPOLLHUP | EPOLLERR | EPOLLRDHUP);
		stream->writable = stream->writable || events & (EPOLLOUT | EPOLLHUP | EPOLLERR);
		bridge_stream_pump(stream);
		return;
	case WATCH_CHANNEL:
		channel = watch->owner;
		if (events & EPOLLOUT)
			channel->writable = true;
		if (events & ~(uint32_t)EPOLLOUT)
			channel_input(channel);
		channel_output(channel);
		return;
	case WATCH_CONTROL:
		control_input(watch->owner);
		return;
	case WATCH_LISTENER:
		control_accept(bridge);
		return;
	case WATCH_EXPECTING:
		take_channel(bridge);
		return;
	}
}

static bool too_long(uint64_t since_ns)
{
	return since_ns && io_now_ns(CLOCK_MONOTONIC) - since_ns > BRIDGE_PATIENCE_S * 1000000000ull;
}

/* The other side is lost for good. */
static void stream_give_up(struct bridge_stream *stream)
{
	log_warn("bridge: %s of vpid %d is lost: the other host does not answer", stream->about->text,
		 stream->about->vpid);
	bridge_stream_drop_arrivals(stream);
	bridge_stream_acked(stream, UINT64_MAX);
	bridge_stream_reset(stream);
}

static void tick_stream(struct bridge_stream *stream)
{
	if (stream->held)
		return;
	if (stream->fresh && listener_accepted(stream))
		bridge_stream_pump(stream);
	if (stream->first && !stream->writable &&
	    stream->about->kind == PBEAM__BRIDGE_STREAM__KIND__LISTENER) {
		stream->writable = true;
		bridge_stream_pump(stream);
	}
	bridge_stream_look(stream);
	if (terminal_look(stream))
		bridge_stream_pump(stream);
	if (stream->anchor
		    ? !stream->channel && too_long(stream->lost_ns)
		    : stream->channel && stream->channel->sock < 0 && too_long(stream->channel->lost_ns))
		stream_give_up(stream);
}

/* Removes streams that have ended, and channels that no stream uses. */
static void bridge_sweep_streams(struct bridge *bridge)
{
	struct bridge_stream *next;
	struct channel *after;
	struct control *later;

	for (struct control *control = bridge->controls; control; control = later) {
		later = control->next;
		if (control->dead)
			control_free(control);
	}
	for (struct bridge_stream *stream = bridge->streams; stream; stream = next) {
		next = stream->next;
		if (bridge_stream_finished(stream) &&
		    (stream->acked == stream->delivered || !stream->channel))
			free_stream(stream);
	}
	for (struct channel *channel = bridge->channels; channel; channel = after) {
		after = channel->next;
		if (channel->sock < 0 && !channel->ours)
			channel_free(channel);
	}
	if (bridge->changed)
		control_describe(bridge);
}

static int patience_ms(const struct bridge *bridge)
{
	int ms = -1;

	for (const struct channel *channel = bridge->channels; channel; channel = channel->next)
		if (channel->ours && channel->sock < 0)
			return SOON_MS;
	for (const struct bridge_stream *stream = bridge->streams; stream; stream = stream->next) {
		if (stream->fresh || (stream->first && !stream->writable &&
				      stream->about->kind == PBEAM__BRIDGE_STREAM__KIND__LISTENER))
			return SOON_MS;
		if (stream->terminal)
			ms = TERMINAL_MS;
		else if (ms < 0 && (!stream->channel || bridge_stream_wants_look(stream)))
			ms = TICK_MS;
	}
	return ms;
}

static void bridge_tick(struct bridge *bridge)
{
	for (struct channel *channel = bridge->channels; channel; channel = channel->next)
		channel_retry(channel);
	for (struct bridge_stream *stream = bridge->streams; stream; stream = stream->next)
		tick_stream(stream);
}

static bool bridge_is_connected(const struct bridge *bridge)
{
	for (const struct channel *channel = bridge->channels; channel; channel = channel->next)
		if (channel->sock >= 0)
			return true;
	return false;
}

/* Sends the last acknowledgements, and acknowledges what the other side still sends. */
static void bridge_linger(struct bridge *bridge)
{
	uint64_t end = io_now_ns(CLOCK_MONOTONIC) + LAST_MS * 1000000ull;
	struct epoll_event events[EVENTS];

	while (bridge_is_connected(bridge) && io_now_ns(CLOCK_MONOTONIC) < end) {
		int n = epoll_wait(bridge->epoll, events, EVENTS, LAST_MS / 5);

		for (int i = 0; i < n; i++)
			bridge_handle_event(bridge, events[i].data.ptr, events[i].events);
	}
}

static bool in_use(const struct bridge *bridge)
{
	for (const struct bridge_stream *stream = bridge->streams; stream; stream = stream->next)
		if (!stream->moved)
			return true;
	return false;
}

/* Runs until the last stream has ended. */
static int bridge_run(struct bridge *bridge)
{
	struct epoll_event events[EVENTS];
	char path[PATH_MAX + 16];
	uint64_t ticked = 0;
	int r = open_all(bridge);

	while (r == 0 && in_use(bridge)) {
		int timeout = patience_ms(bridge), n = epoll_wait(bridge->epoll, events, EVENTS, timeout);
		uint64_t now = io_now_ns(CLOCK_MONOTONIC);

		for (int i = 0; i < n; i++)
			bridge_handle_event(bridge, events[i].data.ptr, events[i].events);
		if (timeout >= 0 && now - ticked >= (uint64_t)timeout * 1000000) {
			bridge_tick(bridge);
			ticked = now;
		}
		bridge_sweep_streams(bridge);
	}
	if (r < 0)
		log_warn("bridge: %s", strerror(-r));
	bridge_linger(bridge);
	if (bridge->path[0]) {
		unlink(bridge->path);
		snprintf(path, sizeof(path), "%s.lines", bridge->path);
		unlink(path);
	}
	bridge_free(bridge);
	return r;
}

int bridge_start(struct bridge *bridge, struct err *err)
{
	pid_t child;
	int status, r = listen_for_control(bridge, err);

	/* In this process: the user may type as soon as the migration is reported. */
	for (struct bridge_stream *stream = bridge->streams; stream && r == 0; stream = stream->next)
		if (stream->anchor && stream->fd >= 0 && bridge_stream_is_terminal(stream))
			r = terminal_depart(stream);
	if (r < 0)
		return r;
	child = fork();
	if (child < 0)
		return err_sys(err, "start a bridge");
	if (child == 0) {
		setsid();
		child = fork();
		if (child != 0)
			_exit(child < 0);
		bridge_become_process(bridge);
		_exit(bridge_run(bridge) < 0);
	}
	while (waitpid(child, &status, 0) < 0 && errno == EINTR)
		continue;
	bridge->started = status == 0;
	return status == 0 ? 0 : err_set(err, -EAGAIN, "start a bridge: cannot fork");
}
