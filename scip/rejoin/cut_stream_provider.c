/*
 * Both sides of a bridged stream were dumped while it was held (cut_streams.c). They continue over a new
 * bridge between the hosts where the parts are now. The new bridge has a new cookie, as the old bridge may
 * still run. The bridge's own end of the pipe or socket comes from object_end_refill().
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "channel/channel.h"
#include "proto/message.h"
#include "scip/bridge/bridge.h"
#include "scip/bridge/bridge_provider.h"
#include "scip/object/common.h"
#include "scip/object/object_end.h"
#include "scip/rejoin/cut_provider.h"

int cut_mark_streams(Pbeam__Object *out, const Pbeam__BridgeList *streams, struct err *err)
{
	int r = external_mark_message(out, &cut_stream_provider, &streams->base);

	return r < 0 ? err_code(err, r, "record a bridge") : 1;
}

/* ---- target ---- */

struct anchors {
	uint8_t cookie[BRIDGE_COOKIE];
	struct bridge *bridge;
};
struct bridges {
	struct bridge *floats; /* or NULL */
	struct anchors *v;
	size_t n;
};

static int cut_stream_make(struct migrate_target *target, void **state, struct object_restore *restore,
			   const Pbeam__Object *object, int *fd, struct err *err)
{
	const struct object_ops *ops = object_ops_of(object);
	int r = ops->check ? ops->check(restore, object, err) : 0;

	return r < 0 ? r : ops->restore(restore, object, fd, err);
}

static const Pbeam__CutStream *find_cut_stream(const struct migrate_target *target,
					       const Pbeam__BridgeStream *stream)
{
	for (size_t i = 0; target->links && i < target->links->n_streams; i++) {
		const Pbeam__CutStream *told = target->links->streams[i];

		if (told->id == stream->id && told->saved.len == BRIDGE_COOKIE &&
		    stream->cookie.len == BRIDGE_COOKIE && told->cookie.len == BRIDGE_COOKIE &&
		    !memcmp(told->saved.data, stream->cookie.data, BRIDGE_COOKIE))
			return told;
	}
	return NULL;
}

static struct bridge *anchors_of(struct bridges *bridges, const uint8_t *cookie)
{
	struct anchors new;

	for (size_t i = 0; i < bridges->n; i++)
		if (!memcmp(bridges->v[i].cookie, cookie, BRIDGE_COOKIE))
			return bridges->v[i].bridge;
	memcpy(new.cookie, cookie, BRIDGE_COOKIE);
	new.bridge = bridge_new(cookie);
	if (!new.bridge || object_append(bridges->v, bridges->n, new) < 0) {
		bridge_free(new.bridge);
		return NULL;
	}
	return new.bridge;
}

/* Takes ownership of `fd`. */
static int add_side(struct bridges *bridges, Pbeam__BridgeStream *stream, const Pbeam__CutStream *told,
		    uint64_t ino, int fd, struct err *err)
{
	struct bridge *bridge;

	stream->generation = 0;
	if (stream->anchor)
		bridge = anchors_of(bridges, told->cookie.data);
	else
		bridge = bridges->floats ? bridges->floats : (bridges->floats = bridge_new(NULL));
	if (!bridge || message_bytes(&stream->cookie, told->cookie.data, told->cookie.len) < 0 ||
	    message_string(&stream->host, told->host) < 0) {
		close(fd);
		return err_code(err, -ENOMEM, "bridges");
	}
	return stream->anchor ? bridge_renew_anchor(bridge, stream, fd, err)
			      : bridge_add_float(bridge, stream, fd, ino, err);
}

static int cut_stream_finish(struct migrate_target *target, void **state, struct object_restore *restore,
			     const Pbeam__Object *object, int fd, struct err *err)
{
	Pbeam__BridgeList *list = (void *)message_unpack(
		&pbeam__bridge_list__descriptor, object->external->data.len, object->external->data.data);
	struct bridges *bridges = *state ? *state : (*state = calloc(1, sizeof(*bridges)));
	auto_close int other = -1;
	struct stat st;
	int r = 0;

	if (!list || !bridges)
		r = err_set(err, list ? -ENOMEM : -EBADMSG, "the record of a bridge is malformed");
	if (r == 0)
		r = object_end_refill(restore, object, fd, &other, err);
	if (r == 0 && fstat(fd, &st) < 0)
		r = err_sys(err, "stat a restored pipe or socket");
	for (size_t i = 0; r == 0 && i < list->n_streams; i++) {
		const Pbeam__CutStream *told = find_cut_stream(target, list->streams[i]);
		int end = other < 0 ? -1 : fcntl(other, F_DUPFD_CLOEXEC, 3);

		if (!told || end < 0) {
			if (end >= 0)
				close(end);
			r = err_set(err, -EBADMSG,
				    "the leader sent no address for the other end of a bridge");
			break;
		}
		r = add_side(bridges, list->streams[i], told, st.st_ino, end, err);
	}
	message_free(list);
	return r;
}

/* Registers the anchors' cookies with the daemon, before a float can connect. */
static int cut_stream_ready(struct migrate_target *target, void **state, ProtobufCBinaryData *rendezvous,
			    struct err *err)
{
	struct bridges *bridges = *state;

	for (size_t i = 0; bridges && i < bridges->n; i++) {
		int expecting = channel_expect(bridges->v[i].cookie, err);

		if (expecting < 0)
			return expecting;
		bridge_expect(bridges->v[i].bridge, expecting);
	}
	return 0;
}

static void start_bridge(const struct migrate_target *target, struct bridge *bridge)
{
	struct err err = ERR_INIT;

	if (bridge_start(bridge, &err) < 0)
		log_error("cut: the bridged connections of vpid %d are lost: %s", target->begin->root,
			  err.text);
}

static void cut_stream_committed(struct migrate_target *target, void **state)
{
	struct bridges *bridges = *state;

	for (size_t i = 0; bridges && i < bridges->n; i++)
		start_bridge(target, bridges->v[i].bridge);
	if (bridges && bridges->floats)
		start_bridge(target, bridges->floats);
}

static void cut_stream_close(struct migrate_target *target, void **state)
{
	struct bridges *bridges = *state;

	for (size_t i = 0; bridges && i < bridges->n; i++)
		bridge_free(bridges->v[i].bridge);
	if (bridges) {
		bridge_free(bridges->floats);
		free(bridges->v);
	}
	free(bridges);
	*state = NULL;
}

const struct external_provider cut_stream_provider = {
	.name = "cut-line",
	.make = cut_stream_make,
	.finish = cut_stream_finish,
	.ready = cut_stream_ready,
	.target_committed = cut_stream_committed,
	.target_close = cut_stream_close,
};
