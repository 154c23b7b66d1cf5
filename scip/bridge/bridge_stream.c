/* A stream's two logs. This file does nothing with descriptors but close them. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/io.h"
#include "proto/message.h"
#include "scip/bridge/bridge_stream.h"

/* A copy of a message, through its packed form; without its log and what waits. */
static Pbeam__BridgeStream *stream_copy_record(const Pbeam__BridgeStream *stream)
{
	Pbeam__BridgeStream bare = *stream;
	uint8_t *bytes;
	Pbeam__BridgeStream *out;
	size_t len;

	bare.n_unacked = bare.n_pending = bare.n_more = 0;
	len = pbeam__bridge_stream__get_packed_size(&bare);
	bytes = malloc(len ? len : 1);
	if (!bytes)
		return NULL;
	pbeam__bridge_stream__pack(&bare, bytes);
	out = pbeam__bridge_stream__unpack(NULL, len, bytes);
	free(bytes);
	return out;
}

struct bridge_stream *bridge_stream_new(struct bridge *bridge, const Pbeam__BridgeStream *about, int fd,
					bool anchor)
{
	struct bridge_stream *stream = calloc(1, sizeof(*stream));

	if (stream)
		stream->about = stream_copy_record(about);
	if (!stream || !stream->about) {
		free(stream);
		return NULL;
	}
	stream->bridge = bridge;
	stream->watch = (struct watch){WATCH_LINE, stream};
	stream->id = about->id;
	stream->ino = about->ino;
	stream->fd = fd;
	stream->anchor = anchor;
	stream->reads = about->reads;
	stream->writes = about->writes;
	stream->readable = stream->writable = true;
	stream->next_number = about->sent;
	stream->expected = stream->delivered = stream->acked = about->received;
	stream->partial = about->partial;
	stream->generation = about->generation;
	stream->made_ns = stream->lost_ns = stream->called_ns = io_now_ns(CLOCK_MONOTONIC);
	stream->next = bridge->streams;
	bridge->streams = stream;
	bridge->changed = true;
	return stream;
}

static void free_record(struct record *record)
{
	free(record->frame);
	free(record);
}

void bridge_stream_free_log(struct bridge_stream *stream)
{
	while (stream->head) {
		struct record *next = stream->head->next;

		free_record(stream->head);
		stream->head = next;
	}
	stream->tail = stream->unsent = NULL;
	stream->weight = 0;
}

void bridge_stream_drop_arrivals(struct bridge_stream *stream)
{
	while (stream->first) {
		struct arrival *next = stream->first->next;

		pbeam__bridge_record__free_unpacked(stream->first->record, NULL);
		free(stream->first);
		stream->first = next;
	}
	stream->last = NULL;
	stream->waiting = 0;
}

struct bridge_stream *bridge_stream_find(struct bridge *bridge, const struct channel *channel, uint64_t id)
{
	for (struct bridge_stream *stream = bridge->streams; stream; stream = stream->next)
		if (stream->id == id && (stream->anchor || stream->channel == channel))
			return stream;
	return NULL;
}

static int append_frame(struct bridge_stream *stream, uint8_t *frame, size_t len, size_t weight,
			uint64_t number)
{
	struct record *record = calloc(1, sizeof(*record));

	if (!record) {
		free(frame);
		return -ENOMEM;
	}
	*record = (struct record){.number = number, .weight = weight, .len = len, .frame = frame};
	if (stream->tail)
		stream->tail->next = record;
	else
		stream->head = record;
	stream->tail = record;
	if (!stream->unsent && !stream->attaching)
		stream->unsent = record;
	stream->weight += weight;
	return 0;
}

Pbeam__BridgeRecord *bridge_stream_record(const ProtobufCBinaryData *frame)
{
	if (frame->len < FRAME_HEAD)
		return NULL;
	return (void *)message_unpack(&pbeam__bridge_record__descriptor, frame->len - FRAME_HEAD,
				      frame->data + FRAME_HEAD);
}

int bridge_stream_append_frame(struct bridge_stream *stream, const uint8_t *frame, size_t len,
			       uint64_t number)
{
	uint8_t *bytes = malloc(len ? len : 1);

	if (!bytes)
		return -ENOMEM;
	memcpy(bytes, frame, len);
	return append_frame(stream, bytes, len, len, number);
}

int bridge_stream_append(struct bridge_stream *stream, Pbeam__BridgeRecord__Kind kind, const void *data,
			 size_t len, const struct sockaddr *from, socklen_t from_len,
			 const Pbeam__BridgeStream *opened)
{
	Pbeam__BridgeRecord record = PBEAM__BRIDGE_RECORD__INIT;
	uint8_t *frame;
	size_t size;
	int r;

	record.stream = stream->id;
	record.number = stream->next_number;
	record.kind = kind;
	record.data = (ProtobufCBinaryData){len, (uint8_t *)(uintptr_t)data};
	record.address = (ProtobufCBinaryData){from_len, (uint8_t *)(uintptr_t)from};
	record.opened = (Pbeam__BridgeStream *)(uintptr_t)opened;
	r = frame_encode(PBEAM__CHANNEL_MESSAGE__BRIDGE_RECORD, &record.base, 0, &frame, &size, NULL);
	if (r == 0)
		r = append_frame(stream, frame, size, len + 64, stream->next_number);
	if (r == 0)
		stream->next_number++;
	return r;
}

void bridge_stream_acked(struct bridge_stream *stream, uint64_t number)
{
	while (stream->head && stream->head->number < number) {
		struct record *record = stream->head;

		if (stream->unsent == record)
			stream->unsent = record->next;
		stream->head = record->next;
		stream->weight -= record->weight;
		free_record(record);
	}
	if (!stream->head)
		stream->tail = NULL;
}

void bridge_stream_rewind(struct bridge_stream *stream, uint64_t number)
{
	struct record *record = stream->head;

	while (record && record->number < number)
		record = record->next;
	stream->unsent = record;
}

int bridge_stream_arrived(struct bridge_stream *stream, Pbeam__BridgeRecord *record)
{
	struct arrival *arrival;

	/* A record sent again after its channel was lost, which had already arrived. */
	if (record->number < stream->expected) {
		pbeam__bridge_record__free_unpacked(record, NULL);
		return 0;
	}
	arrival = record->number == stream->expected && stream->waiting <= BRIDGE_WINDOW + BRIDGE_MESSAGE
			  ? calloc(1, sizeof(*arrival))
			  : NULL;
	if (!arrival) {
		pbeam__bridge_record__free_unpacked(record, NULL);
		return -EPROTO;
	}
	arrival->record = record;
	stream->waiting += record->data.len + 64;
	stream->expected++;
	if (stream->last)
		stream->last->next = arrival;
	else
		stream->first = arrival;
	stream->last = arrival;
	return 0;
}

void bridge_stream_reset(struct bridge_stream *stream)
{
	const struct linger now = {.l_onoff = 1};

	terminal_end(stream);
	if (stream->fd >= 0) {
		/* Turns the end of a TCP connection into a reset; no effect on other sockets. */
		if (stream->socket)
			(void)!setsockopt(stream->fd, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
		close(stream->fd);
	}
	stream->fd = -1;
	stream->reads = stream->writes = false;
	stream->over = true;
	stream->bridge->changed = true;
}

uint64_t bridge_stream_socket_ino(int fd)
{
	struct stat st;

	return fstat(fd, &st) == 0 ? st.st_ino : 0;
}

void bridge_stream_forget(struct bridge_stream *stream)
{
	bridge_stream_free_log(stream);
	bridge_stream_drop_arrivals(stream);
	if (stream->fd >= 0)
		close(stream->fd);
	stream->fd = -1;
	stream->held = stream->fresh = false;
	stream->acked = stream->delivered;
	stream->over = stream->moved = true;
	stream->bridge->changed = true;
}

bool bridge_stream_finished(const struct bridge_stream *stream)
{
	return stream->over && !stream->head && !stream->held && !stream->moved;
}

static int describe_log(const struct bridge_stream *stream, Pbeam__BridgeStream *out)
{
	size_t n = 0;

	for (const struct record *record = stream->head; record; record = record->next)
		n++;
	out->unacked = calloc(n ? n : 1, sizeof(*out->unacked));
	if (!out->unacked)
		return -ENOMEM;
	for (const struct record *record = stream->head; record; record = record->next) {
		ProtobufCBinaryData *bytes = &out->unacked[out->n_unacked];

		if (message_bytes(bytes, record->frame, record->len) < 0)
			return -ENOMEM;
		out->n_unacked++;
	}
	return 0;
}

Pbeam__BridgeStream *bridge_stream_describe(const struct bridge_stream *stream, bool whole)
{
	Pbeam__BridgeStream *out = stream_copy_record(stream->about);

	if (!out)
		return NULL;
	out->id = stream->id;
	out->ino = stream->ino;
	out->received = stream->delivered;
	out->partial = stream->partial;
	out->sent = stream->next_number;
	out->generation = stream->generation + 1;
	out->reads = stream->reads;
	out->writes = stream->writes;
	if (whole && describe_log(stream, out) < 0) {
		message_free(out);
		return NULL;
	}
	return out;
}
