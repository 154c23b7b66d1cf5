/*
 * Each side of a bridged stream has the numbers of records that it sent and received. Records in flight are
 * in the sender's log (cut_streams.c). They are appended to the receiver's queue, as the bridge would have
 * done.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "proto/message.h"
#include "scip/bridge/bridge.h"
#include "scip/bridge/bridge_stream.h"
#include "scip/object/common.h"
#include "scip/rejoin/cut_join.h"
#include "scip/rejoin/cut_provider.h"

enum { CAPACITY_MAX = 1 << 20, CAPACITY_MOST = 1 << 30 };

/* One side of a bridged stream, and the object that is the program's end. */
struct side {
	Pbeam__Object *object;
	Pbeam__BridgeStream *stream;
	Pbeam__BridgeList *list; /* the list of `object` that has `stream` */
	bool joined;
};

struct joining {
	Pbeam__Manifest *manifest;
	struct image_writer *writer;
	Pbeam__BridgeList **lists; /* of each object, or NULL */
	struct side *sides;
	size_t n;
	struct err *err;
};

static int join_refuse_malformed(struct err *err)
{
	return err_set(err, -EBADMSG, "the record of a bridge between two parts is malformed");
}

static int read_sides(struct joining *joining)
{
	for (size_t i = 0; i < joining->manifest->n_objects; i++) {
		Pbeam__Object *object = joining->manifest->objects[i];
		Pbeam__BridgeList *list;

		if (!object->external || strcmp(object->external->provider, cut_stream_provider.name) != 0)
			continue;
		list = joining->lists[i] =
			(void *)message_unpack(&pbeam__bridge_list__descriptor, object->external->data.len,
					       object->external->data.data);
		if (!list || (object->kind_case != PBEAM__OBJECT__KIND_PIPE &&
			      object->kind_case != PBEAM__OBJECT__KIND_UNIX_SOCKET))
			return join_refuse_malformed(joining->err);
		for (size_t k = 0; k < list->n_streams; k++) {
			const struct side side = {object, list->streams[k], list, false};

			if (object_append(joining->sides, joining->n, side) < 0)
				return err_code(joining->err, -ENOMEM, "bridges");
		}
	}
	return 0;
}

static struct side *joining_find_other(const struct joining *joining, const struct side *own)
{
	for (size_t i = 0; i < joining->n; i++) {
		struct side *side = &joining->sides[i];

		if (!side->joined && side->stream->id == own->stream->id &&
		    side->stream->anchor != own->stream->anchor &&
		    message_same_bytes(&side->stream->cookie, &own->stream->cookie))
			return side;
	}
	return NULL;
}

/* ---- data in flight ---- */

/* Calls `each` for every data record of `from` that `to` has not received, without the bytes of it that `to`
 * has. */
static int each_record(const struct side *from, const struct side *to,
		       int (*each)(struct joining *joining, const struct side *to, const uint8_t *data,
				   size_t len),
		       struct joining *joining)
{
	const Pbeam__BridgeStream *stream = from->stream;
	int r = 0;

	if (stream->n_unacked > stream->sent)
		return join_refuse_malformed(joining->err);
	for (size_t i = 0; i < stream->n_unacked && r == 0; i++) {
		uint64_t number = stream->sent - stream->n_unacked + i,
			 skip = number == to->stream->received ? to->stream->partial : 0;
		Pbeam__BridgeRecord *record = bridge_stream_record(&stream->unacked[i]);

		if (!record || record->data.len < skip)
			r = join_refuse_malformed(joining->err);
		else if (record->kind == PBEAM__BRIDGE_RECORD__KIND__DATA && number >= to->stream->received)
			r = each(joining, to, record->data.data + skip, record->data.len - skip);
		message_free(record);
	}
	return r;
}

/* Writes a new extent: the bytes of *extent followed by `data`. */
static int append_bytes(struct joining *joining, Pbeam__Extent **extent, const uint8_t *data, size_t len)
{
	uint64_t before = *extent ? (*extent)->length : 0;
	auto_free uint8_t *bytes = malloc(before + len + 1);
	ssize_t n = 0;

	if (!*extent)
		*extent = message_new(&pbeam__extent__descriptor);
	if (!bytes || !*extent)
		return err_code(joining->err, -ENOMEM, "join the data in flight");
	if (before)
		n = io_pread_full(image_writer_fd(joining->writer), bytes, before, (off_t)(*extent)->offset);
	if (n != (ssize_t)before)
		return err_code(joining->err, n < 0 ? (int)n : -EIO, "read the data in flight");
	if (len)
		memcpy(bytes + before, data, len);
	return image_writer_put(joining->writer, bytes, before + len, *extent, joining->err);
}

static Pbeam__Pipe *joining_find_contents(const struct joining *joining, uint64_t ino)
{
	for (size_t i = 0; i < joining->manifest->n_objects; i++) {
		const Pbeam__Object *object = joining->manifest->objects[i];

		if (object->kind_case == PBEAM__OBJECT__KIND_PIPE && object->pipe->ino == ino &&
		    object->pipe->has_contents)
			return object->pipe;
	}
	return NULL;
}

static int into_pipe(struct joining *joining, const struct side *to, const uint8_t *data, size_t len)
{
	Pbeam__Pipe *pipe = joining_find_contents(joining, to->object->pipe->ino);

	if (!pipe)
		return join_refuse_malformed(joining->err);
	if (pipe->packet && message_append_u32(&pipe->packets, &pipe->n_packets, (uint32_t)len) < 0)
		return err_code(joining->err, -ENOMEM, "join the data in flight");
	return append_bytes(joining, &pipe->contents, data, len);
}

static int into_socket(struct joining *joining, const struct side *to, const uint8_t *data, size_t len)
{
	Pbeam__Datagram *piece = message_add(to->object->unix_socket, queue, pbeam__datagram__descriptor);

	return piece ? append_bytes(joining, &piece->data, data, len)
		     : err_code(joining->err, -ENOMEM, "join the data in flight");
}

/* ---- two ends become one pipe or connection ---- */

/* A writer that poll() has just reported as writable must find room: at least the capacity it had before,
 * beside the contents. Returns bytes. */
static uint64_t needed_capacity(const Pbeam__Pipe *one, const Pbeam__Pipe *other, const Pbeam__Pipe *contents)
{
	uint64_t bytes = contents && contents->contents ? contents->contents->length : 0;
	uint64_t least = one->capacity > other->capacity ? one->capacity : other->capacity;

	if (contents && contents->packet && contents->n_packets * (uint64_t)IMAGE_PAGE > bytes)
		bytes = contents->n_packets * (uint64_t)IMAGE_PAGE;
	return bytes ? bytes + least : least;
}

static int choose_capacity(struct joining *joining, const struct side *one, const struct side *other,
			   uint64_t ino, uint32_t *out)
{
	const Pbeam__Pipe *contents = joining_find_contents(joining, ino);
	uint64_t needed = needed_capacity(one->object->pipe, other->object->pipe, contents),
		 most = CAPACITY_MAX;
	auto_free char *text = NULL;

	if (io_slurp(-100, "/proc/sys/fs/pipe-max-size", 32, &text, NULL) == 0 && strtoull(text, NULL, 10))
		most = strtoull(text, NULL, 10);
	if (most > CAPACITY_MOST)
		most = CAPACITY_MOST;
	if (contents && contents->contents && contents->contents->length > most)
		return err_set(joining->err, -EFBIG,
			       "a pipe of vpid %d to another part has %llu bytes in it, more than a pipe can "
			       "hold on "
			       "one host (fs.pipe-max-size); name another host with --on",
			       one->stream->vpid, (unsigned long long)contents->contents->length);
	for (*out = IMAGE_PAGE; *out < needed && *out < most; *out *= 2)
		continue;
	return 0;
}

static int join_pipes(struct joining *joining, const struct side *one, const struct side *other)
{
	uint64_t ino = one->object->pipe->ino, gone = other->object->pipe->ino;
	const struct side *reader = joining_find_contents(joining, ino) ? one : other;
	uint32_t capacity = 0;
	int r = each_record(reader == one ? other : one, reader, into_pipe, joining);

	if (r == 0)
		r = choose_capacity(joining, one, other, reader->object->pipe->ino, &capacity);
	if (r < 0)
		return r;
	for (size_t i = 0; i < joining->manifest->n_objects; i++) {
		const Pbeam__Object *object = joining->manifest->objects[i];

		if (object->kind_case != PBEAM__OBJECT__KIND_PIPE ||
		    (object->pipe->ino != ino && object->pipe->ino != gone))
			continue;
		object->pipe->ino = ino;
		object->pipe->capacity = capacity;
	}
	return 0;
}

static int join_sockets(struct joining *joining, const struct side *one, const struct side *other)
{
	Pbeam__UnixSocket *a = one->object->unix_socket, *b = other->object->unix_socket;
	int r;

	if (a->type != b->type)
		return join_refuse_malformed(joining->err);
	r = each_record(one, other, into_socket, joining);
	if (r == 0)
		r = each_record(other, one, into_socket, joining);
	a->peer_ino = b->ino;
	b->peer_ino = a->ino;
	return r;
}

static void drop_stream(struct side *side)
{
	Pbeam__BridgeList *list = side->list;
	size_t kept = 0;

	for (size_t i = 0; i < list->n_streams; i++)
		if (list->streams[i] == side->stream)
			message_free(side->stream);
		else
			list->streams[kept++] = list->streams[i];
	list->n_streams = kept;
	side->stream = NULL;
	side->joined = true;
}

static int joining_join(struct joining *joining, struct side *one, struct side *other)
{
	bool pipes = one->object->kind_case == PBEAM__OBJECT__KIND_PIPE;

	if (one->object->kind_case != other->object->kind_case)
		return join_refuse_malformed(joining->err);
	return pipes ? join_pipes(joining, one, other) : join_sockets(joining, one, other);
}

/* ---- streams to other parts ---- */

/* True if the object, or another description of the same pipe, still has a stream to another part. */
static bool has_stream(const struct joining *joining, const Pbeam__Object *object)
{
	for (size_t i = 0; i < joining->n; i++) {
		const struct side *side = &joining->sides[i];

		if (!side->joined &&
		    (side->object == object || (object->kind_case == PBEAM__OBJECT__KIND_PIPE &&
						side->object->kind_case == object->kind_case &&
						side->object->pipe->ino == object->pipe->ino)))
			return true;
	}
	return false;
}

static int mark_again(struct joining *joining)
{
	int r = 0;

	for (size_t i = 0; i < joining->manifest->n_objects && r >= 0; i++) {
		Pbeam__Object *object = joining->manifest->objects[i];

		if (!joining->lists[i])
			continue;
		message_free(object->external);
		object->external = NULL;
		if (has_stream(joining, object))
			r = cut_mark_streams(object, joining->lists[i], joining->err);
	}
	return r < 0 ? r : 0;
}

int cut_join_streams(Pbeam__Manifest *manifest, struct image_writer *writer, struct err *err)
{
	struct joining joining = {.manifest = manifest, .writer = writer, .err = err};
	int r;

	joining.lists = calloc(manifest->n_objects + 1, sizeof(*joining.lists));
	r = joining.lists ? read_sides(&joining) : err_code(err, -ENOMEM, "bridges");
	for (size_t i = 0; i < joining.n && r == 0; i++) {
		struct side *one = &joining.sides[i], *other = one->joined || !one->stream->anchor
								       ? NULL
								       : joining_find_other(&joining, one);

		if (!other)
			continue;
		r = joining_join(&joining, one, other);
		if (r == 0) {
			drop_stream(one);
			drop_stream(other);
		}
	}
	if (r == 0)
		r = mark_again(&joining);
	for (size_t i = 0; joining.lists && i < manifest->n_objects; i++)
		message_free(joining.lists[i]);
	free(joining.lists);
	free(joining.sides);
	return r;
}
