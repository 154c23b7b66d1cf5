/* The coordinator's side of a bridge's control socket. */
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/dirs.h"
#include "proto/frame.h"
#include "proto/message.h"
#include "proto/rpc.h"
#include "scip/bridge/bridge_stream.h"

enum { ANSWER_S = 10 };

struct held_bridge {
	int sock;
	Pbeam__BridgeList *list;
	bool taken;
};
struct bridge_hold {
	struct held_bridge *v;
	size_t n;
};

/* Sends a request and receives the reply; `fd` may be NULL. -ENOENT if the stream does not exist. */
static int hold_request_message(int sock, uint32_t type, const ProtobufCMessage *message, uint32_t wanted,
				const ProtobufCMessageDescriptor *kind, void **out, int *fd, struct err *err)
{
	struct frame frame;
	int r = frame_send(sock, type, message, NULL, 0, err);

	if (r == 0)
		r = frame_recv(sock, &frame, err);
	if (r <= 0)
		return r < 0 ? r : err_set(err, -ENOENT, "a bridge has ended");
	r = frame.type == wanted ? 0 : err_set(err, -ENOENT, "a bridge has lost the connection");
	if (r == 0 && kind) {
		*out = frame_unpack(&frame, kind, err);
		r = *out ? 0 : -EPROTO;
	}
	if (r == 0 && fd && frame.nfds == 1) {
		*fd = frame.fds[0];
		frame.fds[0] = -1;
	}
	frame_free(&frame);
	return r;
}

static int hold_request(int sock, uint32_t type, uint64_t ino, uint32_t wanted,
			const ProtobufCMessageDescriptor *kind, void **out, int *fd, struct err *err)
{
	Pbeam__BridgeSelect select = PBEAM__BRIDGE_SELECT__INIT;

	select.ino = ino;
	return hold_request_message(sock, type, &select.base, wanted, kind, out, fd, err);
}

/* Connects to the bridge that listens at `path`. Its replies time out. */
static int hold_connect(const char *path)
{
	int sock = frame_connect(path, NULL);

	if (sock >= 0)
		rpc_set_timeout(sock, ANSWER_S * 1000);
	return sock;
}

static int hold_add_bridge(struct bridge_hold *hold, const char *path, bool anchors, struct err *err)
{
	Pbeam__BridgeSelect select = PBEAM__BRIDGE_SELECT__INIT;
	auto_close int sock = hold_connect(path);
	struct held_bridge *more;
	void *list = NULL;

	if (sock < 0)
		return 0; /* the socket of a bridge that was killed */
	select.anchors = anchors;
	if (hold_request_message(sock, PBEAM__CHANNEL_MESSAGE__BRIDGE_LIST, &select.base,
				 PBEAM__CHANNEL_MESSAGE__BRIDGE_LISTED, &pbeam__bridge_list__descriptor,
				 &list, NULL, NULL) < 0)
		return 0;
	more = reallocarray(hold->v, hold->n + 1, sizeof(*more));
	if (!more) {
		message_free(list);
		return err_code(err, -ENOMEM, "bridges");
	}
	hold->v = more;
	hold->v[hold->n++] = (struct held_bridge){.sock = steal_fd(&sock), .list = list};
	return 0;
}

static int add_float(void *arg, const char *path, struct err *err)
{
	return hold_add_bridge(arg, path, false, err);
}

static int hold_add_anchor_bridge(void *arg, const char *path, struct err *err)
{
	return hold_add_bridge(arg, path, true, err);
}

/* Calls `fn` for each bridge's socket on this host, until one call fails. */
static int for_each(int (*act)(void *arg, const char *path, struct err *err), void *arg, struct err *err)
{
	char path[PATH_MAX], file[PATH_MAX + 256];
	auto_closedir DIR *dir = NULL;
	const struct dirent *entry;
	int r = dirs_runtime(path, "bridge", err);

	if (r < 0)
		return r;
	dir = opendir(path);
	if (!dir)
		return err_sys(err, "open directory %s", path);
	while (r == 0 && (entry = readdir(dir)) != NULL)
		if (strlen(entry->d_name) == BRIDGE_COOKIE * 2) {
			snprintf(file, sizeof(file), "%s/%s", path, entry->d_name);
			r = act(arg, file, err);
		}
	return r;
}

static int find_all(struct bridge_hold **out, int (*act)(void *arg, const char *path, struct err *err),
		    struct err *err)
{
	int r;

	*out = calloc(1, sizeof(**out));
	if (!*out)
		return err_code(err, -ENOMEM, "bridges");
	r = for_each(act, *out, err);
	if (r < 0 || (*out)->n == 0) {
		bridge_release(*out, false);
		*out = NULL;
	}
	return r;
}

int bridge_find_all(struct bridge_hold **out, struct err *err)
{
	return find_all(out, add_float, err);
}

int bridge_find_anchors(struct bridge_hold **out, struct err *err)
{
	return find_all(out, hold_add_anchor_bridge, err);
}

const Pbeam__BridgeStream *bridge_next(const struct bridge_hold *hold, uint64_t ino,
				       const Pbeam__BridgeStream *last)
{
	bool seen = !last;

	for (size_t i = 0; hold && i < hold->n; i++)
		for (size_t j = 0; j < hold->v[i].list->n_streams; j++) {
			const Pbeam__BridgeStream *stream = hold->v[i].list->streams[j];

			if (seen && stream->ino == ino)
				return stream;
			seen = seen || stream == last;
		}
	return NULL;
}

int bridge_take_anchor(struct bridge_hold *hold, const Pbeam__BridgeStream *stream, Pbeam__BridgeStream **out,
		       struct err *err)
{
	Pbeam__BridgeSelect select = PBEAM__BRIDGE_SELECT__INIT;
	void *taken = NULL;
	int sock = -1, r;

	for (size_t i = 0; i < hold->n; i++)
		for (size_t j = 0; j < hold->v[i].list->n_streams; j++)
			if (hold->v[i].list->streams[j] == stream)
				sock = hold->v[i].sock;
	select.anchor = stream->id;
	r = hold_request_message(sock, PBEAM__CHANNEL_MESSAGE__BRIDGE_HOLD, &select.base,
				 PBEAM__CHANNEL_MESSAGE__BRIDGE_HELD, NULL, NULL, NULL, err);
	if (r == 0)
		r = hold_request_message(sock, PBEAM__CHANNEL_MESSAGE__BRIDGE_TAKE, &select.base,
					 PBEAM__CHANNEL_MESSAGE__BRIDGE_TAKEN,
					 &pbeam__bridge_stream__descriptor, &taken, NULL, err);
	*out = taken;
	return r;
}

static struct held_bridge *holder_of(const struct bridge_hold *hold, uint64_t ino,
				     const Pbeam__BridgeStream **stream)
{
	for (size_t i = 0; hold && ino && i < hold->n; i++)
		for (size_t j = 0; j < hold->v[i].list->n_streams; j++)
			if (hold->v[i].list->streams[j]->ino == ino) {
				*stream = hold->v[i].list->streams[j];
				return &hold->v[i];
			}
	return NULL;
}

const Pbeam__BridgeStream *bridge_find(const struct bridge_hold *hold, uint64_t ino)
{
	const Pbeam__BridgeStream *stream = NULL;

	(void)holder_of(hold, ino, &stream);
	return stream;
}

int bridge_stop(struct bridge_hold *hold, uint64_t ino, int *fd, struct err *err)
{
	const Pbeam__BridgeStream *stream;
	struct held_bridge *bridge = holder_of(hold, ino, &stream);

	*fd = -1;
	return bridge ? hold_request(bridge->sock, PBEAM__CHANNEL_MESSAGE__BRIDGE_HOLD, ino,
				     PBEAM__CHANNEL_MESSAGE__BRIDGE_HELD, NULL, NULL, fd, err)
		      : -ENOENT;
}

int bridge_take(struct bridge_hold *hold, uint64_t ino, Pbeam__BridgeStream **out, struct err *err)
{
	const Pbeam__BridgeStream *stream;
	struct held_bridge *bridge = holder_of(hold, ino, &stream);
	void *taken = NULL;
	int r;

	if (!bridge)
		return -ENOENT;
	r = hold_request(bridge->sock, PBEAM__CHANNEL_MESSAGE__BRIDGE_TAKE, ino,
			 PBEAM__CHANNEL_MESSAGE__BRIDGE_TAKEN, &pbeam__bridge_stream__descriptor, &taken,
			 NULL, err);
	bridge->taken = r == 0;
	*out = taken;
	return r;
}

void bridge_release(struct bridge_hold *hold, bool moved)
{
	for (size_t i = 0; hold && i < hold->n; i++) {
		if (moved && hold->v[i].taken)
			(void)!hold_request(hold->v[i].sock, PBEAM__CHANNEL_MESSAGE__BRIDGE_DROP, 0,
					    PBEAM__CHANNEL_MESSAGE__BRIDGE_DROPPED, NULL, NULL, NULL, NULL);
		close(hold->v[i].sock);
		message_free(hold->v[i].list);
	}
	if (hold)
		free(hold->v);
	free(hold);
}

/* ---- terminals ---- */

static int hold_flush_bridge(void *arg, const char *path, struct err *err)
{
	Pbeam__BridgeSelect select = PBEAM__BRIDGE_SELECT__INIT;
	auto_close int sock = hold_connect(path);
	const struct vpid *vpid = arg;
	int r;

	if (sock < 0)
		return 0;
	select.vpid = vpid->n;
	r = hold_request_message(sock, PBEAM__CHANNEL_MESSAGE__BRIDGE_FLUSH, &select.base,
				 PBEAM__CHANNEL_MESSAGE__BRIDGE_DROPPED, NULL, NULL, NULL, err);
	return r == -ETIMEDOUT
		       ? err_set(err, r,
				 "what it wrote to its terminal is not read on the host where that is")
		       : 0;
}

int bridge_flush(struct vpid vpid, struct err *err)
{
	return for_each(hold_flush_bridge, &vpid, err);
}

int bridge_return(const Pbeam__BridgeStream *stream, int *control, int *fd, struct err *err)
{
	auto_close int sock = -1;
	char path[PATH_MAX];
	int r = stream->cookie.len == BRIDGE_COOKIE ? control_path(stream->cookie.data, path, err) : -ENOENT;

	if (r == 0)
		r = sock = hold_connect(path);
	if (r < 0)
		return -ENOENT;
	*fd = -1;
	r = hold_request_message(sock, PBEAM__CHANNEL_MESSAGE__BRIDGE_RETURN, &stream->base,
				 PBEAM__CHANNEL_MESSAGE__BRIDGE_HELD, NULL, NULL, fd, err);
	if (r == -ETIMEDOUT)
		return err_set(err, r,
			       "the process with the other side of its terminal does not read what it wrote");
	if (r < 0 || *fd < 0)
		return -ENOENT;
	*control = steal_fd(&sock);
	return 0;
}

int bridge_resume(int control, Pbeam__BridgeStream **out, struct err *err)
{
	void *taken = NULL;
	int r = hold_request_message(control, PBEAM__CHANNEL_MESSAGE__BRIDGE_RESUME, NULL,
				     PBEAM__CHANNEL_MESSAGE__BRIDGE_TAKEN, &pbeam__bridge_stream__descriptor,
				     &taken, NULL, err);

	*out = taken;
	return r;
}
