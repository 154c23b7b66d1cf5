/*
 * The source side of bridges: finds the descriptions whose other end stays, dumps them, and starts the anchor
 * that stands in for the program once it has moved. If the other end is a float already (the program came
 * from another host), the existing stream goes along instead.
 *
 * A description that a process which stays reads too is not bridged: it would be read on two hosts.
 */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "base/log.h"
#include "channel/channel.h"
#include "proto/message.h"
#include "scip/bridge/bridge_provider.h"
#include "scip/bridge/bridge_source.h"
#include "scip/ends/end_address.h"
#include "scip/object/common.h"
#include "scip/object/inet.h"
#include "scip/object/socket.h"
#include "scip/object/tcp_look.h"
#include "scip/object/tcp_socket.h"
#include "scip/reconnect/reconnect_ports.h"
#include "scip/tracee/procfs.h"

/* *some: a process that moves has a pipe or socket that is no console stream. Only then are all of the user's
 * processes searched for other holders, which lengthens the pause by some milliseconds. */
static int has_some(const struct migrate_source *source, bool *some, struct err *err)
{
	struct holders own = {0}, console = {0};
	int r = holders_add(&console, source->job->keeper.n);

	*some = false;
	for (size_t i = 0; i < source->group->n && r == 0; i++)
		r = holders_add(&own, source->group->v[i]->rpid.n);
	for (size_t i = 0; i < own.n && !*some; i++)
		*some = !holders_find(&console, own.v[i].ino, true, true);
	holders_free(&own);
	holders_free(&console);
	return r < 0 ? err_code(err, r, "list pipes and sockets") : 0;
}

static int bridge_claim(struct migrate_source *source, void **state, struct object_dump *dump,
			struct err *err)
{
	struct outgoing *outgoing = calloc(1, sizeof(*outgoing));
	auto_free pid_t *members = calloc(source->group->n + 1, sizeof(*members));
	bool some;
	int r;

	(void)dump;
	*state = outgoing;
	if (!outgoing || !members)
		return err_code(err, -ENOMEM, "bridges");
	for (size_t i = 0; i < source->group->n; i++)
		members[i] = source->group->v[i]->rpid.n;
	outgoing->anchor = bridge_new(NULL);
	if (!outgoing->anchor)
		return err_code(err, -ENOMEM, "bridges");
	r = has_some(source, &some, err);
	if (r == 0 && some)
		r = holders_read(&outgoing->holders, members, source->group->n, err);
	return r < 0 ? r : bridge_find_all(&outgoing->hold, err);
}

const char *bridge_comm_of(pid_t pid, char comm[32])
{
	auto_free char *text = NULL;
	char path[64];

	snprintf(path, sizeof(path), "/proc/%d/comm", pid);
	if (io_slurp(AT_FDCWD, path, 64, &text, NULL) < 0)
		text = NULL;
	snprintf(comm, 32, "%.*s", text ? (int)strcspn(text, "\n") : 1, text ? text : "?");
	return comm;
}

/* ---- frozen ---- */

static uint64_t queue_length(const Pbeam__Extent *extent)
{
	return extent ? extent->length : 0;
}

int bridge_mark(Pbeam__Object *out, const Pbeam__BridgeStream *stream, bool mirror, struct err *err)
{
	Pbeam__BridgeStream copy = *stream;

	if (mirror) {
		copy.reads = stream->writes;
		copy.writes = stream->reads;
	}
	return external_mark_message(out, &bridge_provider, &copy.base) < 0
		       ? err_code(err, -ENOMEM, "bridges")
		       : 0;
}

/* Adds a new stream to the anchor. `skip` bytes or messages are dumped with the program. Sets the stream's
 * cookie, which is the anchor's, and its program, in `comm`. */
static int source_add_anchor(const struct outgoing_end *end, Pbeam__BridgeStream *stream, uint64_t skip,
			     char comm[32], struct err *err)
{
	struct bridge *anchor = end->outgoing->anchor;
	int fd = fcntl(end->of->local, F_DUPFD_CLOEXEC, 3), r;

	if (fd < 0)
		return err_sys(err, "keep a descriptor of it");
	stream->vpid = end->of->holder_vpid.n;
	if (!stream->ino)
		stream->ino = end->of->st.st_ino;
	stream->program = (char *)(uintptr_t)bridge_comm_of(end->of->holder.n, comm);
	r = bridge_add_anchor(anchor, stream, fd, skip, &stream->id, err);
	if (r < 0)
		return r;
	stream->cookie = (ProtobufCBinaryData){BRIDGE_COOKIE, (uint8_t *)(uintptr_t)bridge_cookie(anchor)};
	return 0;
}

int bridge_leave(const struct outgoing_end *end, Pbeam__BridgeStream *stream, uint64_t skip, struct err *err)
{
	char comm[32];
	int r = source_add_anchor(end, stream, skip, comm, err);

	if (r == 0)
		r = bridge_mark(end->out, stream, true, err);
	return r < 0 ? r : 1;
}

/* Marks the description with the stream that it already has. */
static int source_take_stream(const struct outgoing_end *end, Pbeam__BridgeStream **stream, struct err *err)
{
	int r = bridge_take(end->outgoing->hold, end->of->st.st_ino, stream, err);

	if (r == 0)
		r = bridge_mark(end->out, *stream, false, err);
	return r < 0 ? err_wrap(err, r, "a connection through another host") : 1;
}

/* As source_take_stream(), for a listener: a direct caller may wait here to be accepted, too. */
static int take_listener_along(const struct outgoing_end *end, Pbeam__BridgeStream *passing, struct err *err)
{
	Pbeam__BridgeStream *stream = NULL, copy, **more;
	char comm[32];
	int r = bridge_take(end->outgoing->hold, end->of->st.st_ino, &stream, err);

	if (r == 0)
		r = source_add_anchor(end, passing, 0, comm, err);
	if (r < 0) {
		message_free(stream);
		return err_wrap(err, r, "a listening socket that is called through another host");
	}
	copy = *stream;
	more = calloc(stream->n_more + 1, sizeof(*more));
	if (more) {
		for (size_t i = 0; i < stream->n_more; i++)
			more[i] = stream->more[i];
		more[stream->n_more] = passing;
		copy.more = more;
		copy.n_more++;
		passing->reads = false;
		passing->writes = true; /* as the float has it */
		r = bridge_mark(end->out, &copy, false, err);
	} else {
		r = err_code(err, -ENOMEM, "bridges");
	}
	free(more);
	message_free(stream);
	return r < 0 ? r : 1;
}

bool bridge_has_stream(const struct outgoing_end *end)
{
	return bridge_find(end->outgoing->hold, end->of->st.st_ino) != NULL;
}

/* ---- pipes ---- */

static bool pipe_is_known(const struct outgoing_end *end, bool reader)
{
	for (size_t i = 0; i < end->outgoing->npipes; i++)
		if (end->outgoing->pipes[i].ino == end->of->st.st_ino &&
		    end->outgoing->pipes[i].reader == reader)
			return true;
	return false;
}

/* True if another process has the other end. poll() cannot tell this of a FIFO, which may wait for its first
 * writer. */
static bool other_end_stays(const struct outgoing_end *end, bool reader)
{
	struct pollfd poll_fd = {.fd = end->of->local, .events = POLLIN | POLLOUT};

	if (end->of->link[0] == '/')
		return holders_find(&end->outgoing->holders, end->of->st.st_ino, !reader, reader) != NULL;
	return poll(&poll_fd, 1, 0) >= 0 && !(poll_fd.revents & (POLLERR | POLLHUP));
}

void bridge_forget_contents(Pbeam__Pipe *pipe)
{
	pbeam__extent__free_unpacked(pipe->contents, NULL);
	pipe->contents = NULL;
	pipe->has_contents = false;
	pipe->n_packets = 0;
}

static int dump_pipe(const struct outgoing_end *end, bool reader, struct err *err)
{
	Pbeam__BridgeStream stream = PBEAM__BRIDGE_STREAM__INIT;
	struct known_pipe own = {end->of->st.st_ino, reader};
	Pbeam__BridgeStream *along = NULL;
	bool again = pipe_is_known(end, reader), old = bridge_has_stream(end);
	int r = 0;

	if (old && !again)
		r = bridge_take(end->outgoing->hold, end->of->st.st_ino, &along, err);
	if (r == 0)
		r = object_dump_as_usual(end->dump, end->of, end->out, err);
	if (r == 0 && !again && object_append(end->outgoing->pipes, end->outgoing->npipes, own) < 0)
		r = err_code(err, -ENOMEM, "bridges");
	if (r < 0) {
		message_free(along);
		return r;
	}
	if (!reader)
		bridge_forget_contents(end->out->pipe);
	stream.kind = end->out->pipe->packet ? PBEAM__BRIDGE_STREAM__KIND__MESSAGES
					     : PBEAM__BRIDGE_STREAM__KIND__STREAM;
	stream.packet = end->out->pipe->packet;
	stream.reads = reader;
	stream.writes = !reader;
	stream.text = (char *)(uintptr_t)(end->of->link[0] == '/' ? "FIFO" : "pipe");
	if (again || along)
		r = bridge_mark(end->out, along ? along : &stream, false, err);
	else
		return bridge_leave(end, &stream,
				    stream.packet ? end->out->pipe->n_packets
						  : queue_length(end->out->pipe->contents),
				    err);
	message_free(along);
	return r < 0 ? r : 1;
}

static int source_leave_pipe(const struct outgoing_end *end, struct err *err)
{
	const struct holders *holders = &end->outgoing->holders;
	const struct holder *outside;
	uint64_t ino = end->of->st.st_ino;
	bool reader, writer;
	int fd = -1, r;

	object_dump_pipe_ends(end->dump, end->of, &reader, &writer);
	outside = holders_find(holders, ino, true, true);
	if (reader && writer)
		return outside ? bridge_shared(end, outside, "a pipe, both ends of which would go,", err) : 0;
	if (!bridge_has_stream(end) && !other_end_stays(end, reader))
		return 0;
	outside = holders_find(holders, ino, true, false);
	if (reader && outside)
		return bridge_shared(end, outside, "the read end of a pipe", err);
	if (bridge_has_stream(end) && !pipe_is_known(end, reader)) {
		r = bridge_stop(end->outgoing->hold, ino, &fd, err);
		if (r < 0)
			return r;
		close(fd);
	}
	return dump_pipe(end, reader, err);
}

/* ---- sockets ---- */

/* Returns 0 if no process that stays holds the socket, 1 if one does and it is left to that process. `peer`
 * is the inode of the other end, or 0. A process with both ends does not count: it has not closed its
 * child's. */
static int check_alone(const struct outgoing_end *end, uint64_t peer, struct err *err)
{
	const struct holder *outside =
		holders_find_one_sided(&end->outgoing->holders, end->of->st.st_ino, peer);

	return outside ? bridge_shared(end, outside, "a socket", err) : 0;
}

static int stop_stream(const struct outgoing_end *end, struct err *err)
{
	auto_close int fd = -1;
	int r = bridge_stop(end->outgoing->hold, end->of->st.st_ino, &fd, err);

	if (r < 0)
		return err_wrap(err, r, "a connection through another host");
	/* Afterwards everything between the two sockets of this host is in their queues. */
	if (fd >= 0 && socket_option(fd, SOL_SOCKET, SO_PROTOCOL, 0) == IPPROTO_TCP &&
	    (tcp_drain(end->of->local, fd) < 0 || tcp_drain(fd, end->of->local) < 0))
		return err_set(err, -EBUSY,
			       "a TCP connection with more on its way than its receiver has room for; let it "
			       "read, or "
			       "raise net.ipv4.tcp_rmem");
	return 0;
}

static int check_passed(const Pbeam__UnixSocket *socket, struct err *err)
{
	for (size_t i = 0; i < socket->n_queue; i++)
		if (socket->queue[i]->n_passed_objects)
			return err_set(err, -EBUSY,
				       "a UNIX socket with descriptors in its queue, whose other end stays: "
				       "they cannot go "
				       "to another host; let the program take them first");
	return 0;
}

static uint64_t unix_skip(const Pbeam__UnixSocket *socket)
{
	uint64_t bytes = 0;

	for (size_t i = 0; i < socket->n_queue; i++)
		bytes += queue_length(socket->queue[i]->data);
	return socket->type == SOCK_STREAM ? bytes : socket->n_queue;
}

static bool unix_peer_stays(const struct outgoing_end *end, const Pbeam__UnixSocket *socket)
{
	if (!socket->connected || !socket->peer_ino || socket->peer_ino == socket->ino ||
	    object_dump_find_inode(end->dump, socket->peer_ino, end->of))
		return false;
	return socket->type != SOCK_DGRAM || socket->peer_name.len <= offsetof(struct sockaddr_un, sun_path);
}

/* True for a listener that callers can still find. */
static bool unix_has_callers(const Pbeam__UnixSocket *socket)
{
	return socket->listening && socket->name.len > offsetof(struct sockaddr_un, sun_path) &&
	       !(socket->bound_file && socket->bound_file->deleted);
}

static int check_queue_of(const struct outgoing_end *end, const Pbeam__UnixSocket *socket, struct err *err)
{
	for (size_t i = 0; i < socket->n_accept_queue; i++)
		if (socket->accept_queue[i] &&
		    object_dump_find_inode(end->dump, socket->accept_queue[i], end->of))
			return err_set(
				err, -EBUSY,
				"a listening UNIX socket with a connection of its own tree that waits to be "
				"accepted; try again once it is accepted");
	return 0;
}

static int leave_unix(const struct outgoing_end *end, struct err *err)
{
	Pbeam__BridgeStream stream = PBEAM__BRIDGE_STREAM__INIT;
	Pbeam__BridgeStream *along = NULL;
	const Pbeam__UnixSocket *socket;
	bool old = bridge_has_stream(end);
	int r = old ? stop_stream(end, err) : 0;

	if (r == 0)
		r = object_dump_as_usual(end->dump, end->of, end->out, err);
	if (r < 0)
		return r;
	socket = end->out->unix_socket;
	if (!old && !unix_has_callers(socket) && !unix_peer_stays(end, socket))
		return 1; /* dumped as usual */
	r = check_alone(end, socket->peer_ino, err);
	if (r == 0)
		r = check_passed(socket, err);
	if (r == 0)
		r = check_queue_of(end, socket, err);
	if (r != 0)
		return r;
	if (old) {
		r = source_take_stream(end, &along, err);
		message_free(along);
		return r;
	}
	stream.family = AF_UNIX;
	stream.packet = socket->type == SOCK_SEQPACKET;
	stream.kind = socket->listening		    ? PBEAM__BRIDGE_STREAM__KIND__LISTENER
		      : socket->type == SOCK_STREAM ? PBEAM__BRIDGE_STREAM__KIND__STREAM
						    : PBEAM__BRIDGE_STREAM__KIND__MESSAGES;
	stream.reads = true;
	stream.writes = !socket->listening;
	stream.text = (char *)(uintptr_t)(socket->listening ? "listening UNIX socket" : "UNIX connection");
	return bridge_leave(end, &stream, unix_skip(socket), err);
}

static bool away_from_home(const struct outgoing_end *end, const char *born)
{
	char own[NAME_TEXT_MAX];

	return names_cluster(end->source->names, own) && strcmp(own, born) != 0;
}

/* True for a listener and a connection with a process outside. A connection that has ended needs no stream;
 * an existing one delivers the rest and ends. */
static bool tcp_needs_stream(const struct outgoing_end *end, const struct tcp_look *look)
{
	return look->kind == TCP_KIND_LISTENS ||
	       (look->kind == TCP_KIND_CONNECTED &&
		tcp_find_other(end->dump, end->of).place == TCP_PEER_OUTSIDE);
}

static int leave_tcp(const struct outgoing_end *end, struct err *err)
{
	Pbeam__BridgeStream stream = PBEAM__BRIDGE_STREAM__INIT, *along = NULL;
	const struct tcp_look *known = tcp_look_of(end->dump, end->of);
	struct tcp_look look;
	char words[INET_TEXT_MAX + 64], text[INET_TEXT_MAX];
	bool listens, old = bridge_has_stream(end);
	int r;

	if (!known || !tcp_needs_stream(end, known))
		return 0;
	look = *known;
	listens = look.kind == TCP_KIND_LISTENS;
	r = check_alone(end, 0, err);
	if (r == 0 && old)
		r = stop_stream(end, err);
	if (r == 0)
		r = listens ? object_dump_as_usual(end->dump, end->of, end->out, err)
			    : tcp_dump_end(end->dump, end->of, end->out, err);
	if (r == 0 && listens)
		r = address_leaves(end->source, end->out, end->of->holder_vpid, err);
	if (r != 0)
		return r;
	if (old && !listens) {
		r = source_take_stream(end, &along, err);
		if (r > 0 && (message_bytes(&end->out->tcp->local, along->local.data, along->local.len) < 0 ||
			      message_bytes(&end->out->tcp->peer, along->peer.data, along->peer.len) < 0))
			r = -ENOMEM;
		message_free(along);
		return r;
	}
	stream.family = end->out->tcp->family;
	stream.kind = listens ? PBEAM__BRIDGE_STREAM__KIND__LISTENER : PBEAM__BRIDGE_STREAM__KIND__STREAM;
	stream.reads = true;
	stream.writes = !listens;
	stream.local = end->out->tcp->local;
	stream.peer = end->out->tcp->peer;
	snprintf(words, sizeof(words), "%s %s", listens ? "listening at" : "connection with",
		 inet_text(listens ? &look.own : &look.peer, text));
	stream.text = words;
	if (listens && (old || away_from_home(end, end->out->tcp->name_host))) {
		stream.passing = true;
		stream.peer = end->out->tcp->name_peer;
	}
	return old ? take_listener_along(end, &stream, err)
		   : bridge_leave(end, &stream, queue_length(end->out->tcp->receive_queue), err);
}

/* True for a member of a multicast group, which keeps its address. */
static bool is_multicast(const Pbeam__UdpSocket *socket)
{
	struct inet_address at;

	if (socket->n_memberships)
		return true;
	if (!inet_address_parse(&socket->local, &at))
		return false;
	return at.any.sa_family == AF_INET ? IN_MULTICAST(ntohl(at.v4.sin_addr.s_addr))
					   : IN6_IS_ADDR_MULTICAST(&at.v6.sin6_addr);
}

/* Lists the callers that are reconnected to the port's new address and do not need the stream. */
static int mark_port(const struct outgoing_end *end, const Pbeam__BridgeStream *stream, struct err *err)
{
	const struct reconnect_port *port = reconnect_ports_of(end->source->ports, end->of->st.st_ino);
	Pbeam__BridgeStream copy = *stream;

	copy.direct = port ? port->callers : NULL;
	copy.n_direct = port ? port->ncallers : 0;
	return bridge_mark(end->out, &copy, false, err);
}

static int take_port_along(const struct outgoing_end *end, struct err *err)
{
	Pbeam__BridgeStream *along = NULL;
	int r = bridge_take(end->outgoing->hold, end->of->st.st_ino, &along, err);

	if (r == 0)
		r = mark_port(end, along, err);
	message_free(along);
	return r < 0 ? err_wrap(err, r, "a UDP socket that is called through another host") : 1;
}

static int leave_udp(const struct outgoing_end *end, struct err *err)
{
	Pbeam__BridgeStream stream = PBEAM__BRIDGE_STREAM__INIT;
	struct inet_address peer = {.len = sizeof(peer.v6)}, own = {.len = sizeof(own.v6)};
	char words[INET_TEXT_MAX + 64], text[INET_TEXT_MAX], comm[32];
	bool old = bridge_has_stream(end), connected = getpeername(end->of->local, &peer.any, &peer.len) == 0;
	int r;

	if (getsockname(end->of->local, &own.any, &own.len) < 0 || (!connected && !inet_port(&own)))
		return 0;
	r = check_alone(end, 0, err);
	if (r == 0 && old)
		r = stop_stream(end, err);
	if (r == 0)
		r = object_dump_as_usual(end->dump, end->of, end->out, err);
	if (r == 0 && !connected && !old && is_multicast(end->out->udp))
		return 1;
	if (r == 0 && !connected)
		r = address_leaves(end->source, end->out, end->of->holder_vpid, err);
	if (r == 0)
		r = address_name_senders(end->source, end->out->udp, err);
	if (r != 0)
		return r;
	if (old)
		return take_port_along(end, err);
	stream.family = end->out->udp->family;
	stream.kind = connected ? PBEAM__BRIDGE_STREAM__KIND__MESSAGES : PBEAM__BRIDGE_STREAM__KIND__PORT;
	stream.reads = stream.writes = true;
	stream.local = end->out->udp->local;
	stream.peer = end->out->udp->peer;
	snprintf(words, sizeof(words), "UDP %s %s", connected ? "with" : "at",
		 inet_text(connected ? &peer : &own, text));
	stream.text = words;
	r = source_add_anchor(end, &stream, end->out->udp->n_queue, comm, err);
	if (r == 0)
		r = mark_port(end, &stream, err);
	return r < 0 ? r : 1;
}

static int bridge_dump_state(struct migrate_source *source, void **state, struct object_dump *dump,
			     const struct object_source *of, Pbeam__Object *out, struct err *err)
{
	struct outgoing_end end = {.source = source, .outgoing = *state, .dump = dump, .of = of, .out = out};
	int family, protocol;

	if (of->hidden || !end.outgoing || object_dump_console_stream(dump, of) >= 0)
		return 0;
	if (S_ISFIFO(of->st.st_mode))
		return source_leave_pipe(&end, err);
	if (S_ISCHR(of->st.st_mode))
		return bridge_leave_terminal(&end, err);
	if (!S_ISSOCK(of->st.st_mode))
		return 0;
	family = socket_option(of->local, SOL_SOCKET, SO_DOMAIN, -1);
	protocol = socket_option(of->local, SOL_SOCKET, SO_PROTOCOL, -1);
	if (family == AF_UNIX)
		return leave_unix(&end, err);
	if (family != AF_INET && family != AF_INET6)
		return 0;
	return protocol == IPPROTO_TCP	 ? leave_tcp(&end, err)
	       : protocol == IPPROTO_UDP ? leave_udp(&end, err)
					 : 0;
}

/* The last step that may fail. The floats will connect through pbeamd. */
static int bridge_on_held(struct migrate_source *source, void **state, const ProtobufCBinaryData *rendezvous,
			  struct err *err)
{
	struct outgoing *outgoing = *state;
	int expecting;

	if (!outgoing || bridge_streams(outgoing->anchor) == 0)
		return 0;
	expecting = channel_expect(bridge_cookie(outgoing->anchor), err);
	if (expecting < 0)
		return expecting;
	bridge_expect(outgoing->anchor, expecting);
	return 0;
}

static void bridge_on_committed(struct migrate_source *source, void **state)
{
	struct outgoing *outgoing = *state;
	struct err err = ERR_INIT;

	if (!outgoing)
		return;
	if (bridge_streams(outgoing->anchor) && bridge_start(outgoing->anchor, &err) < 0)
		log_error("migrate: what vpid %d was connected with is lost: %s", source->target.n, err.text);
	bridge_release(outgoing->hold, true);
	outgoing->hold = NULL;
}

static void close_source(struct migrate_source *source, void **state)
{
	struct outgoing *outgoing = *state;

	if (!outgoing)
		return;
	bridge_release(outgoing->hold, false);
	bridge_free(outgoing->anchor);
	holders_free(&outgoing->holders);
	free(outgoing->pipes);
	free(outgoing->terminals);
	free(outgoing);
	*state = NULL;
}

const struct external_provider bridge_provider = {
	.name = "bridge",
	.prepare = bridge_survey,
	.claim = bridge_claim,
	.dump = bridge_dump_state,
	.held = bridge_on_held,
	.source_committed = bridge_on_committed,
	.source_close = close_source,
	.make = bridge_make,
	.finish = bridge_finish,
	.target_committed = bridge_committed,
	.target_close = bridge_close,
};
