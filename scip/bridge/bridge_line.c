/* A line's two logs. Nothing here touches a descriptor but to close it. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/io.h"
#include "proto/message.h"
#include "scip/bridge/bridge_line.h"

/* A copy of a message, through its packed form; without its log and what waits. */
static Pbeam__BridgeLine *copy(const Pbeam__BridgeLine *line)
{
	Pbeam__BridgeLine bare = *line;
	uint8_t *bytes;
	Pbeam__BridgeLine *out;
	size_t len;

	bare.n_unacked = bare.n_pending = bare.n_more = 0;
	len = pbeam__bridge_line__get_packed_size(&bare);
	bytes = malloc(len ? len : 1);
	if (!bytes)
		return NULL;
	pbeam__bridge_line__pack(&bare, bytes);
	out = pbeam__bridge_line__unpack(NULL, len, bytes);
	free(bytes);
	return out;
}

struct line *line_new(struct bridge *bridge, const Pbeam__BridgeLine *about, int fd, bool anchor)
{
	struct line *line = calloc(1, sizeof(*line));

	if (line)
		line->about = copy(about);
	if (!line || !line->about) {
		free(line);
		return NULL;
	}
	line->bridge = bridge;
	line->watch = (struct watch){WATCH_LINE, line};
	line->id = about->id;
	line->ino = about->ino;
	line->fd = fd;
	line->anchor = anchor;
	line->reads = about->reads;
	line->writes = about->writes;
	line->readable = line->writable = true;
	line->next_number = about->sent;
	line->expected = line->delivered = line->acked = about->received;
	line->partial = about->partial;
	line->generation = about->generation;
	line->made_ns = line->lost_ns = line->called_ns = io_now_ns(CLOCK_MONOTONIC);
	line->next = bridge->lines;
	bridge->lines = line;
	bridge->changed = true;
	return line;
}

static void free_record(struct record *record)
{
	free(record->frame);
	free(record);
}

void line_free_log(struct line *line)
{
	while (line->head) {
		struct record *next = line->head->next;

		free_record(line->head);
		line->head = next;
	}
	line->tail = line->unsent = NULL;
	line->weight = 0;
}

void line_drop_arrivals(struct line *line)
{
	while (line->first) {
		struct arrival *next = line->first->next;

		pbeam__bridge_record__free_unpacked(line->first->record, NULL);
		free(line->first);
		line->first = next;
	}
	line->last = NULL;
	line->waiting = 0;
}

struct line *line_find(struct bridge *bridge, const struct channel *channel, uint64_t id)
{
	for (struct line *line = bridge->lines; line; line = line->next)
		if (line->id == id && (line->anchor || line->channel == channel))
			return line;
	return NULL;
}

static int append_frame(struct line *line, uint8_t *frame, size_t len, size_t weight, uint64_t number)
{
	struct record *record = calloc(1, sizeof(*record));

	if (!record) {
		free(frame);
		return -ENOMEM;
	}
	*record = (struct record){.number = number, .weight = weight, .len = len, .frame = frame};
	if (line->tail)
		line->tail->next = record;
	else
		line->head = record;
	line->tail = record;
	if (!line->unsent && !line->attaching)
		line->unsent = record;
	line->weight += weight;
	return 0;
}

Pbeam__BridgeRecord *line_record(const ProtobufCBinaryData *frame)
{
	if (frame->len < FRAME_HEAD)
		return NULL;
	return pbeam__bridge_record__unpack(NULL, frame->len - FRAME_HEAD, frame->data + FRAME_HEAD);
}

int line_append_frame(struct line *line, const uint8_t *frame, size_t len, uint64_t number)
{
	uint8_t *bytes = malloc(len ? len : 1);

	if (!bytes)
		return -ENOMEM;
	memcpy(bytes, frame, len);
	return append_frame(line, bytes, len, len, number);
}

int line_append(struct line *line, Pbeam__BridgeRecord__Kind kind, const void *data, size_t len,
		const struct sockaddr *from, socklen_t from_len, const Pbeam__BridgeLine *opened)
{
	Pbeam__BridgeRecord record = PBEAM__BRIDGE_RECORD__INIT;
	uint8_t *frame;
	size_t size;
	int r;

	record.line = line->id;
	record.number = line->next_number;
	record.kind = kind;
	record.data = (ProtobufCBinaryData){len, (uint8_t *)(uintptr_t)data};
	record.address = (ProtobufCBinaryData){from_len, (uint8_t *)(uintptr_t)from};
	record.opened = (Pbeam__BridgeLine *)(uintptr_t)opened;
	r = frame_encode(PBEAM__CHANNEL_MESSAGE__BRIDGE_RECORD, &record.base, 0, &frame, &size, NULL);
	if (r == 0)
		r = append_frame(line, frame, size, len + 64, line->next_number);
	if (r == 0)
		line->next_number++;
	return r;
}

void line_acked(struct line *line, uint64_t number)
{
	while (line->head && line->head->number < number) {
		struct record *record = line->head;

		if (line->unsent == record)
			line->unsent = record->next;
		line->head = record->next;
		line->weight -= record->weight;
		free_record(record);
	}
	if (!line->head)
		line->tail = NULL;
}

void line_rewind(struct line *line, uint64_t number)
{
	struct record *record = line->head;

	while (record && record->number < number)
		record = record->next;
	line->unsent = record;
}

int line_arrived(struct line *line, Pbeam__BridgeRecord *record)
{
	struct arrival *arrival;

	/* Sent again after a channel was lost: it is here already. */
	if (record->number < line->expected) {
		pbeam__bridge_record__free_unpacked(record, NULL);
		return 0;
	}
	arrival = record->number == line->expected && line->waiting <= BRIDGE_WINDOW + BRIDGE_MESSAGE
			  ? calloc(1, sizeof(*arrival))
			  : NULL;
	if (!arrival) {
		pbeam__bridge_record__free_unpacked(record, NULL);
		return -EPROTO;
	}
	arrival->record = record;
	line->waiting += record->data.len + 64;
	line->expected++;
	if (line->last)
		line->last->next = arrival;
	else
		line->first = arrival;
	line->last = arrival;
	return 0;
}

void line_reset(struct line *line)
{
	const struct linger now = {.l_onoff = 1};

	terminal_end(line);
	free(line->typed.data);
	if (line->fd >= 0) {
		/* Of TCP it makes a reset of the end; others take no notice. */
		if (line->socket)
			(void)!setsockopt(line->fd, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
		close(line->fd);
	}
	line->fd = -1;
	line->reads = line->writes = false;
	line->over = true;
	line->bridge->changed = true;
}

uint64_t line_socket_ino(int fd)
{
	struct stat st;

	return fstat(fd, &st) == 0 ? st.st_ino : 0;
}

void line_forget(struct line *line)
{
	line_free_log(line);
	line_drop_arrivals(line);
	if (line->fd >= 0)
		close(line->fd);
	line->fd = -1;
	line->held = line->fresh = false;
	line->acked = line->delivered;
	line->over = line->moved = true;
	line->bridge->changed = true;
}

bool line_finished(const struct line *line)
{
	return line->over && !line->head && !line->held && !line->moved;
}

static int describe_log(const struct line *line, Pbeam__BridgeLine *out)
{
	size_t n = 0;

	for (const struct record *record = line->head; record; record = record->next)
		n++;
	out->unacked = calloc(n ? n : 1, sizeof(*out->unacked));
	if (!out->unacked)
		return -ENOMEM;
	for (const struct record *record = line->head; record; record = record->next) {
		ProtobufCBinaryData *bytes = &out->unacked[out->n_unacked];

		if (message_bytes(bytes, record->frame, record->len) < 0)
			return -ENOMEM;
		out->n_unacked++;
	}
	return 0;
}

Pbeam__BridgeLine *line_describe(const struct line *line, bool whole)
{
	Pbeam__BridgeLine *out = copy(line->about);

	if (!out)
		return NULL;
	out->id = line->id;
	out->ino = line->ino;
	out->received = line->delivered;
	out->partial = line->partial;
	out->sent = line->next_number;
	out->generation = line->generation + 1;
	out->reads = line->reads;
	out->writes = line->writes;
	if (whole && describe_log(line, out) < 0) {
		message_free(out);
		return NULL;
	}
	return out;
}
