/*
 * A pipe or UNIX connection to a process that has moved goes over a bridge: an anchor beside the end that
 * stayed, a float beside the end that moved (scip/bridge/bridge.h). Data in flight is in two places: in the
 * kernel's queues at both ends, which are saved as any other queue, and in the bridge's logs. A log keeps a
 * record until the other side has it in its queue. Once no process writes, reads or moves any more, each part
 * can therefore dump its own side without asking the other part, and the two sides are consistent.
 *
 * TCP connections and ports that go over a bridge have their other end outside the cut. They are not handled
 * here, and count as connections to the outside.
 */
#include "scip/rejoin/cut_streams.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "proto/message.h"
#include "scip/bridge/bridge_provider.h"
#include "scip/object/common.h"
#include "scip/object/socket.h"
#include "scip/object/unix_diag.h"
#include "scip/rejoin/cut_provider.h"

/* Takes ownership of `side`. */
static int streams_add(struct cut_streams *streams, uint64_t ino, Pbeam__BridgeStream *side,
		       Pbeam__CutReply *reply, struct err *err)
{
	Pbeam__CutBridge *out = message_add(reply, bridges, pbeam__cut_bridge__descriptor);
	struct cut_stream new = {.ino = ino, .side = side};

	if (!out || message_bytes(&out->cookie, side->cookie.data, side->cookie.len) < 0 ||
	    message_string(&out->text, side->text) < 0 || object_append(streams->v, streams->n, new) < 0) {
		message_free(side);
		return err_code(err, -ENOMEM, "list the bridges");
	}
	out->id = side->id;
	out->anchor = side->anchor;
	return 0;
}

static bool cut_stream_is_known(const struct cut_streams *streams, uint64_t ino)
{
	for (size_t i = 0; i < streams->n; i++)
		if (streams->v[i].ino == ino)
			return true;
	return false;
}

/* Turns -ENOENT, of a stream that has just ended or is being moved, into -EBUSY. */
static int busy_if_gone(int r, struct err *err)
{
	return r == -ENOENT ? err_set(err, -EBUSY,
				      "a connection through another host is just ending or "
				      "moving; try again")
			    : r;
}

static int take_float(struct cut_streams *streams, uint64_t ino, Pbeam__CutReply *reply, struct err *err)
{
	Pbeam__BridgeStream *side = NULL;
	int fd, r;

	if (!bridge_find(streams->floats, ino))
		return 0;
	r = bridge_stop(streams->floats, ino, &fd, err);
	if (fd >= 0)
		close(fd);
	if (r == 0)
		r = bridge_take(streams->floats, ino, &side, err);
	return r < 0 ? busy_if_gone(r, err) : streams_add(streams, ino, side, reply, err);
}

/* True if `of` is the end opposite to the one that moved. A process that stayed may hold the same end of a
 * pipe as the process that moved. */
static bool is_other_end_of_anchor(const struct object_source *of, const Pbeam__BridgeStream *anchor)
{
	int mode = of->flags & O_ACCMODE;

	return S_ISSOCK(of->st.st_mode) || (anchor->reads && mode != O_RDONLY) ||
	       (anchor->writes && mode != O_WRONLY);
}

/* `left` is the inode of the end that the moved process had on this host. */
static int take_anchors(struct cut_streams *streams, const struct object_source *of, uint64_t left,
			Pbeam__CutReply *reply, struct err *err)
{
	const Pbeam__BridgeStream *stream = NULL;
	int r = 0;

	while (r == 0 && (stream = bridge_next(streams->anchors, left, stream)) != NULL) {
		Pbeam__BridgeStream *side = NULL;

		if (!is_other_end_of_anchor(of, stream))
			continue;
		r = bridge_take_anchor(streams->anchors, stream, &side, err);
		r = r < 0 ? busy_if_gone(r, err) : streams_add(streams, of->st.st_ino, side, reply, err);
	}
	return r;
}

static uint64_t unix_peer(const struct unix_diag_table *table, uint64_t ino)
{
	const struct unix_diag *diag = unix_diag_find(table, ino);

	return diag ? diag->peer : 0;
}

/* Reports an end whose other end may be in another part on this host. A FIFO needs none of this: it is
 * opened by its path. */
static int cut_stream_offer(struct object_dump *dump, const struct object_source *of, uint64_t peer,
			    Pbeam__CutReply *reply, struct err *err)
{
	uint64_t ino = of->st.st_ino;
	bool reads = true, writes = true;
	Pbeam__CutBridge *out;

	if (S_ISFIFO(of->st.st_mode)) {
		object_dump_pipe_ends(dump, of, &reads, &writes);
		if (of->link[0] == '/' || (reads && writes))
			return 0;
	} else if (!peer || object_dump_find_inode(dump, peer, of)) {
		return 0;
	}
	for (size_t i = 0; i < reply->n_bridges; i++)
		if (reply->bridges[i]->ino == ino)
			return 0;
	out = message_add(reply, bridges, pbeam__cut_bridge__descriptor);
	if (!out)
		return err_code(err, -ENOMEM, "list the bridges");
	out->ino = ino;
	out->peer = peer;
	out->reads = reads;
	out->writes = writes;
	return 0;
}

int cut_streams_find(struct cut_streams *streams, struct object_dump *dump, Pbeam__CutReply *reply,
		     struct err *err)
{
	const struct object_source *of;
	struct unix_diag_table table = {0};
	int r = bridge_find_all(&streams->floats, err);

	if (r == 0)
		r = bridge_find_anchors(&streams->anchors, err);
	if (r == 0)
		r = unix_diag_read(&table, err);
	for (size_t i = 0; r == 0 && (of = object_dump_source(dump, i)) != NULL; i++) {
		uint64_t ino = of->st.st_ino, left = ino;

		if (of->hidden || (!S_ISFIFO(of->st.st_mode) && !socket_is(of, AF_UNIX, 0)) ||
		    cut_stream_is_known(streams, ino) || object_dump_console_stream(dump, of) >= 0)
			continue;
		r = take_float(streams, ino, reply, err);
		if (S_ISSOCK(of->st.st_mode))
			left = unix_peer(&table, ino);
		if (r == 0 && left)
			r = take_anchors(streams, of, left, reply, err);
		if (r == 0 && !cut_stream_is_known(streams, ino))
			r = cut_stream_offer(dump, of, left, reply, err);
	}
	unix_diag_free(&table);
	return r;
}

/* Returns one side of a bridged stream that has carried nothing yet, NULL without memory. */
static Pbeam__BridgeStream *begin_stream(struct object_dump *dump, const struct object_source *of,
					 const Pbeam__CutJoin *join)
{
	Pbeam__BridgeStream *stream = message_new(&pbeam__bridge_stream__descriptor);
	bool is_bytes = S_ISFIFO(of->st.st_mode), reads = true, writes = true;

	if (!stream || message_bytes(&stream->cookie, join->cookie.data, join->cookie.len) < 0 ||
	    message_string(&stream->text, is_bytes ? "pipe" : "UNIX connection") < 0) {
		message_free(stream);
		return NULL;
	}
	if (is_bytes) {
		object_dump_pipe_ends(dump, of, &reads, &writes);
		stream->packet = (of->flags & O_DIRECT) != 0;
	} else {
		int type = socket_option(of->local, SOL_SOCKET, SO_TYPE, SOCK_STREAM);

		stream->family = AF_UNIX;
		stream->packet = type == SOCK_SEQPACKET;
		is_bytes = type == SOCK_STREAM;
	}
	stream->kind = is_bytes && !stream->packet ? PBEAM__BRIDGE_STREAM__KIND__STREAM
						   : PBEAM__BRIDGE_STREAM__KIND__MESSAGES;
	stream->id = join->id;
	stream->anchor = join->anchor;
	stream->reads = writes; /* the bridge reads what the program writes */
	stream->writes = reads;
	stream->vpid = of->holder_vpid.n;
	return stream;
}

int cut_streams_join(struct cut_streams *streams, struct object_dump *dump, const Pbeam__CutRequest *request,
		     struct err *err)
{
	for (size_t i = 0; i < request->n_joins; i++) {
		const Pbeam__CutJoin *join = request->joins[i];
		const struct object_source *of = object_dump_find_inode(dump, join->ino, NULL);
		struct cut_stream new = {.ino = join->ino};

		if (!of || join->cookie.len != BRIDGE_COOKIE)
			return err_set(err, -EPROTO,
				       "the leader joins a connection that is not in this part");
		new.side = begin_stream(dump, of, join);
		if (!new.side || object_append(streams->v, streams->n, new) < 0) {
			message_free(new.side);
			return err_code(err, -ENOMEM, "bridges");
		}
	}
	return 0;
}

static bool reads_here(struct object_dump *dump, const struct object_source *of)
{
	bool reads, writes;

	object_dump_pipe_ends(dump, of, &reads, &writes);
	return reads;
}

int cut_streams_dump(struct cut_streams *streams, struct object_dump *dump, const struct object_source *of,
		     Pbeam__Object *out, struct err *err)
{
	Pbeam__BridgeList list = PBEAM__BRIDGE_LIST__INIT;
	Pbeam__BridgeStream **sides;
	int r;

	if (of->hidden || !cut_stream_is_known(streams, of->st.st_ino))
		return 0;
	sides = list.streams = calloc(streams->n, sizeof(*list.streams));
	r = sides ? object_dump_as_usual(dump, of, out, err) : err_code(err, -ENOMEM, "bridges");
	/* The first description of a pipe gets the streams, the others an empty list. */
	for (size_t i = 0; i < streams->n && r == 0; i++)
		if (streams->v[i].ino == of->st.st_ino && !streams->v[i].saved) {
			streams->v[i].saved = true;
			list.streams[list.n_streams++] = streams->v[i].side;
		}
	if (r == 0 && S_ISFIFO(of->st.st_mode) && !reads_here(dump, of))
		bridge_forget_contents(out->pipe);
	r = r < 0 ? r : cut_mark_streams(out, &list, err);
	free(sides);
	return r;
}

void cut_streams_free(struct cut_streams *streams)
{
	bridge_release(streams->floats, false);
	bridge_release(streams->anchors, false);
	for (size_t i = 0; i < streams->n; i++)
		message_free(streams->v[i].side);
	free(streams->v);
	*streams = (struct cut_streams){0};
}
