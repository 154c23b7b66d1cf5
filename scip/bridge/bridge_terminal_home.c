/*
 * The return of a terminal. Before the commit all output of the program on the other host is written to the
 * old terminal, which is right wherever the program goes on, and the program gets a description of that
 * terminal. With the commit the anchor lets go. Then the settings are the program's, and typed bytes that
 * were not read are put into the queue: bytes that had reached the other terminal without being interpreted
 * again, bytes that were under way as if they were typed now. For that the master is borrowed from its
 * holder.
 */
#include "scip/bridge/bridge_terminal_home.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "proto/message.h"
#include "scip/bridge/bridge_holders.h"
#include "scip/bridge/bridge_stream.h"
#include "scip/object/common.h"
#include "scip/object/object_end.h"
#include "scip/object/pty_queue.h"
#include "scip/object/terminal.h"

struct terminal_home {
	struct terminal_home *next;
	uint8_t cookie[BRIDGE_COOKIE];
	uint64_t id, received;
	int control, slave;
	Pbeam__Tty settings; /* termios only, a copy */
	char *typed;
	size_t len;
};

static struct terminal_home *terminal_home_find(struct terminal_home *homes,
						const Pbeam__BridgeStream *stream)
{
	while (homes && !(homes->id == stream->id && stream->cookie.len == BRIDGE_COOKIE &&
			  memcmp(homes->cookie, stream->cookie.data, BRIDGE_COOKIE) == 0))
		homes = homes->next;
	return homes;
}

static bool is_here(const struct migrate_target *target, const Pbeam__BridgeStream *stream)
{
	char own[NAME_TEXT_MAX];

	return stream->host[0] && stream->cookie.len == BRIDGE_COOKIE && names_cluster(target->names, own) &&
	       strcmp(own, stream->host) == 0;
}

static int open_home(struct terminal_home **homes, struct object_restore *restore, const Pbeam__Tty *tty,
		     const Pbeam__BridgeStream *stream, struct err *err)
{
	struct terminal_home *home = calloc(1, sizeof(*home));
	int r, adopted;

	if (!home)
		return err_code(err, -ENOMEM, "bridges");
	home->control = home->slave = -1;
	r = bridge_return(stream, &home->control, &home->slave, err);
	if (r < 0) {
		terminal_home_free(home);
		return r;
	}
	home->id = stream->id;
	home->received = stream->received;
	memcpy(home->cookie, stream->cookie.data, BRIDGE_COOKIE);
	home->next = *homes;
	*homes = home;
	home->settings = (Pbeam__Tty)PBEAM__TTY__INIT;
	adopted = fcntl(home->slave, F_DUPFD_CLOEXEC, 3);
	if (adopted < 0)
		return err_sys(err, "keep a terminal");
	r = object_set_bytes(&home->settings.termios, tty->termios.data, tty->termios.len, err);
	if (r < 0)
		close(adopted);
	return r < 0 ? r : terminal_adopt_apart(restore, tty, adopted, err);
}

/* An entry without a stream was requested first; the terminal is made from the entry that has one. */
static int make_first(const struct migrate_target *target, struct object_restore *restore,
		      const Pbeam__BridgeStream *stream, struct err *err)
{
	int r = 0;

	for (size_t i = 0; i < target->manifest->n_objects && r >= 0; i++) {
		const Pbeam__Object *object = target->manifest->objects[i];
		Pbeam__BridgeStream *other = NULL;

		if (object_tty_of(object) && object->external)
			other = (void *)message_unpack(&pbeam__bridge_stream__descriptor,
						       object->external->data.len,
						       object->external->data.data);
		if (other && !other->another && other->id == stream->id &&
		    other->cookie.len == BRIDGE_COOKIE &&
		    memcmp(other->cookie.data, stream->cookie.data, BRIDGE_COOKIE) == 0)
			r = object_restore_get(restore, object->id, err);
		message_free(other);
	}
	return r < 0 ? r : 0;
}

int terminal_home_make(struct terminal_home **homes, const struct migrate_target *target,
		       struct object_restore *restore, const Pbeam__Object *object,
		       const Pbeam__BridgeStream *stream, int *fd, struct err *err)
{
	Pbeam__Object copy = *object;
	Pbeam__Tty tty = *object->tty;
	int r = 0;

	if (!is_here(target, stream))
		return 0;
	if (stream->another)
		r = make_first(target, restore, stream, err);
	else
		r = open_home(homes, restore, object->tty, stream, err);
	if (r == -ENOENT || (r == 0 && !terminal_home_find(*homes, stream)))
		return 0;
	tty.winsize = (ProtobufCBinaryData){0}; /* is right as it is */
	copy.tty = &tty;
	if (r == 0)
		r = object_ops_of(object)->restore(restore, &copy, fd, err);
	return r < 0 ? r : 1;
}

int terminal_home_finish(struct terminal_home *homes, struct object_restore *restore,
			 const Pbeam__Object *object, const Pbeam__BridgeStream *stream, struct err *err)
{
	struct terminal_home *home = terminal_home_find(homes, stream);
	int r = 0;

	if (home && !stream->another)
		r = object_get_extent(restore, object->tty->input, &home->typed, &home->len, err);
	return r < 0 ? r : home != NULL;
}

/* ---- it is ours ---- */

static int borrow_master(int slave, struct err *err)
{
	struct holders holders = {0};
	pid_t self = getpid();
	int r = holders_read(&holders, &self, 1, err);

	if (r == 0)
		r = holders_get_master(&holders, bridge_terminal_ino(terminal_pts_number(slave, 0)));
	holders_free(&holders);
	return r;
}

/* Writes bytes as if typed. There is no reader yet: bytes without room are lost. */
static int terminal_type(int master, const uint8_t *data, size_t len)
{
	while (len) {
		struct pollfd room = {.fd = master, .events = POLLOUT};
		ssize_t n;

		if (poll(&room, 1, 0) != 1 || !(room.revents & POLLOUT))
			return -ENOSPC;
		n = write(master, data, len < 256 ? len : 256);
		if (n < 0 && errno != EINTR)
			return -errno;
		data += n < 0 ? 0 : n;
		len -= n < 0 ? 0 : (size_t)n;
	}
	return 0;
}

static int type_record(const struct terminal_home *home, int master, const ProtobufCBinaryData *frame,
		       struct err *err)
{
	Pbeam__BridgeRecord *record = bridge_stream_record(frame);
	Pbeam__Tty settings = PBEAM__TTY__INIT;
	int r = record ? 0 : -EBADMSG;

	if (record && record->kind == PBEAM__BRIDGE_RECORD__KIND__DATA)
		r = master < 0 ? -ENOENT : terminal_type(master, record->data.data, record->data.len);
	if (record && record->kind == PBEAM__BRIDGE_RECORD__KIND__TERMIOS) {
		settings.termios = record->data;
		r = terminal_restore_termios(&settings, home->slave, err);
	}
	message_free(record);
	return r < 0 ? err_code(err, r, "what was typed meanwhile") : 0;
}

static int terminal_home_end(struct terminal_home *home, struct err *err)
{
	Pbeam__BridgeStream *rest;
	auto_close int master = -1;
	int r = bridge_resume(home->control, &rest, err);
	uint64_t first = r == 0 ? rest->sent - rest->n_unacked : 0;

	if (r == 0)
		r = terminal_restore_termios(&home->settings, home->slave, err);
	if (r == 0 && (home->len || rest->n_unacked))
		master = borrow_master(home->slave, err);
	if (r == 0 && home->len)
		r = master < 0 ? err_code(err, master, "what was typed ahead")
			       : pty_input_put(master, home->slave, home->typed, home->len, err);
	for (size_t i = 0; i < (rest ? rest->n_unacked : 0) && r == 0; i++)
		if (first + i >= home->received)
			r = type_record(home, master, &rest->unacked[i], err);
	message_free(rest);
	return r;
}

void terminal_home_committed(struct terminal_home *homes)
{
	for (; homes; homes = homes->next) {
		struct err err = ERR_INIT;

		if (terminal_home_end(homes, &err) < 0)
			log_warn("migrate: a terminal that is at home again: %s", err.text);
	}
}

void terminal_home_free(struct terminal_home *homes)
{
	while (homes) {
		struct terminal_home *next = homes->next;

		if (homes->control >= 0)
			close(homes->control);
		if (homes->slave >= 0)
			close(homes->slave);
		free(homes->settings.termios.data);
		free(homes->typed);
		free(homes);
		homes = next;
	}
}
