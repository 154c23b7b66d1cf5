/* Terminals whose master stays, on the source host. bridge_terminal.c explains them. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "proto/message.h"
#include "scip/bridge/bridge_source.h"
#include "scip/object/common.h"
#include "scip/object/terminal.h"

static const struct known_terminal *find_known(const struct outgoing *outgoing, uint64_t ino)
{
	for (size_t i = 0; i < outgoing->nterminals; i++)
		if (outgoing->terminals[i].ino == ino)
			return &outgoing->terminals[i];
	return NULL;
}

static int outgoing_note_terminal(struct outgoing *outgoing, uint64_t ino, const Pbeam__BridgeStream *stream,
				  struct err *err)
{
	struct known_terminal known = {.ino = ino, .id = stream->id};

	if (stream->cookie.len != BRIDGE_COOKIE)
		return err_set(err, -EBADMSG, "the record of a bridge is malformed");
	memcpy(known.cookie, stream->cookie.data, BRIDGE_COOKIE);
	snprintf(known.host, sizeof(known.host), "%s", stream->host);
	return object_append(outgoing->terminals, outgoing->nterminals, known) < 0
		       ? err_code(err, -ENOMEM, "bridges")
		       : 0;
}

/* Another description of a terminal that has its stream, such as bash's of /dev/tty. */
static int leave_another(const struct outgoing_end *end, const struct known_terminal *known, struct err *err)
{
	Pbeam__BridgeStream stream = PBEAM__BRIDGE_STREAM__INIT;
	int r = terminal_dump_apart(end->dump, end->of, -1, end->out, NULL, err);

	stream.kind = PBEAM__BRIDGE_STREAM__KIND__TERMINAL;
	stream.another = true;
	stream.id = known->id;
	stream.cookie = (ProtobufCBinaryData){BRIDGE_COOKIE, (uint8_t *)(uintptr_t)known->cookie};
	stream.host = (char *)(uintptr_t)known->host;
	if (r == 0)
		r = bridge_mark(end->out, &stream, false, err);
	return r < 0 ? r : 1;
}

/* The terminal came from another host: its stream moves along. */
static int outgoing_take_terminal(const struct outgoing_end *end, uint64_t ino, struct err *err)
{
	struct bridge_hold *hold = end->outgoing->hold;
	Pbeam__BridgeStream *stream = NULL;
	auto_close int master = -1;
	int r = bridge_stop(hold, ino, &master, err);

	if (r == 0)
		r = terminal_dump_apart(end->dump, end->of, master, end->out, NULL, err);
	if (r == 0)
		r = bridge_take(hold, ino, &stream, err);
	if (r == 0)
		r = bridge_mark(end->out, stream, false, err);
	if (r == 0)
		r = outgoing_note_terminal(end->outgoing, ino, stream, err);
	message_free(stream);
	return r < 0 ? err_wrap(err, r, "a terminal whose other side is on another host") : 1;
}

/* A master moves only with the programs on its other side, which would otherwise lose their terminal. */
static int check_master(const struct outgoing_end *end, struct err *err)
{
	uint64_t ino = bridge_terminal_ino(terminal_pts_number(end->of->local, end->of->st.st_rdev));
	const struct holder *outside = holders_find_slave(&end->outgoing->holders, ino);
	struct holders bridges = {0};
	int r;

	if (outside)
		return err_set(err, -ENOTSUP,
			       "the master of a terminal that process %d, which stays, has; migrate the "
			       "whole tree",
			       outside->pid);
	r = holders_read_bridges(&bridges, err);
	if (r == 0 && holders_find_slave(&bridges, ino))
		r = err_set(err, -EBUSY,
			    "the master of a terminal whose program is on another host; migrate that back "
			    "first");
	holders_free(&bridges);
	return r;
}

int bridge_leave_terminal(const struct outgoing_end *end, struct err *err)
{
	Pbeam__BridgeStream stream = PBEAM__BRIDGE_STREAM__INIT;
	int number = terminal_slave_apart(end->dump, end->of), r;
	uint64_t ino = bridge_terminal_ino(number);
	const struct known_terminal *known = find_known(end->outgoing, ino);
	struct pty_bytes typed = {0};
	const struct holder *outside;
	auto_close int master = -1;
	char text[64];

	if (terminal_is_master(&end->of->st))
		return check_master(end, err);
	if (number < 0)
		return 0;
	if (known)
		return leave_another(end, known, err);
	outside = holders_find_slave(&end->outgoing->holders, ino);
	if (outside)
		return bridge_refuse_shared(outside, "a terminal", err);
	if (bridge_find(end->outgoing->hold, ino))
		return outgoing_take_terminal(end, ino, err);
	master = holders_get_master(&end->outgoing->holders, ino);
	r = terminal_dump_apart(end->dump, end->of, master, end->out, &typed, err);
	if (r < 0)
		return r;
	snprintf(text, sizeof(text), "terminal /dev/pts/%d", number);
	stream.kind = PBEAM__BRIDGE_STREAM__KIND__TERMINAL;
	stream.ino = ino;
	stream.reads = stream.writes = true;
	stream.text = text;
	r = bridge_leave(end, &stream, 0, err);
	if (r > 0)
		bridge_anchor_typed(end->outgoing->anchor, stream.id, &typed);
	free(typed.data);
	if (r > 0 && outgoing_note_terminal(end->outgoing, ino, &stream, err) < 0)
		return err->code;
	return r;
}
