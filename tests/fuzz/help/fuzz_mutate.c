#include "tests/fuzz/help/fuzz_mutate.h"

#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "proto/frame.h"
#include "proto/message.h"

enum { NODES_MAX = 512, RECORDS_MAX = 64, TEXT_MAX = 300, RECORD_HEAD = 3 };

/* ---- random numbers ---- */

static unsigned draw(unsigned *seed, unsigned below)
{
	*seed = *seed * 1664525u + 1013904223u;
	return below ? (*seed >> 8) % below : 0;
}

static uint64_t draw_value(unsigned *seed, uint64_t now)
{
	static const uint64_t odd[] = {0,	   1,	       2,	   3,	       255,
				       4095,	   4096,       4097,	   65536,      1 << 20,
				       INT32_MAX,  1ull << 31, UINT32_MAX, 1ull << 32, 1ull << 46,
				       1ull << 47, INT64_MAX,  1ull << 63, UINT64_MAX, UINT64_MAX - 1,
				       -4096ull,   -8192ull,   20480,	   24576};

	switch (draw(seed, 8)) {
	case 0:
		return now + 1;
	case 1:
		return now - 1;
	case 2:
		return now ^ (1ull << draw(seed, 64));
	case 3:
		return now + 4096;
	case 4:
		return draw(seed, 32);
	case 5:
		return (uint64_t)draw(seed, 1 << 20) * 4096;
	default:
		return odd[draw(seed, sizeof(odd) / sizeof(odd[0]))];
	}
}

/* ---- messages ---- */

struct nodes {
	ProtobufCMessage *v[NODES_MAX];
	size_t n, seen;
	unsigned *seed;
};

static void *member(ProtobufCMessage *message, size_t offset)
{
	return (char *)message + offset;
}

static bool is_one_of(const ProtobufCFieldDescriptor *field)
{
	return (field->flags & PROTOBUF_C_FIELD_FLAG_ONEOF) != 0;
}

static bool is_set(ProtobufCMessage *message, const ProtobufCFieldDescriptor *field)
{
	return !is_one_of(field) || *(uint32_t *)member(message, field->quantifier_offset) == field->id;
}

/* Lists the messages in this one; of more than fit, a random choice. */
static void list_nodes(ProtobufCMessage *message, struct nodes *nodes)
{
	const ProtobufCMessageDescriptor *descriptor = message->descriptor;
	size_t at = nodes->n;

	if (nodes->n == NODES_MAX)
		at = draw(nodes->seed, (unsigned)nodes->seen + 1);
	else
		nodes->n++;
	nodes->seen++;
	if (at < NODES_MAX)
		nodes->v[at] = message;
	for (unsigned i = 0; i < descriptor->n_fields; i++) {
		const ProtobufCFieldDescriptor *field = &descriptor->fields[i];
		void *value = member(message, field->offset);

		if (field->type != PROTOBUF_C_TYPE_MESSAGE || !is_set(message, field))
			continue;
		if (field->label == PROTOBUF_C_LABEL_REPEATED) {
			const size_t n = *(size_t *)member(message, field->quantifier_offset);

			for (size_t k = 0; k < n; k++)
				list_nodes((*(ProtobufCMessage ***)value)[k], nodes);
		} else if (*(ProtobufCMessage **)value) {
			list_nodes(*(ProtobufCMessage **)value, nodes);
		}
	}
}

static size_t size_of(const ProtobufCFieldDescriptor *field)
{
	switch (field->type) {
	case PROTOBUF_C_TYPE_MESSAGE:
	case PROTOBUF_C_TYPE_STRING:
		return sizeof(void *);
	case PROTOBUF_C_TYPE_BYTES:
		return sizeof(ProtobufCBinaryData);
	case PROTOBUF_C_TYPE_BOOL:
		return sizeof(protobuf_c_boolean);
	case PROTOBUF_C_TYPE_INT64:
	case PROTOBUF_C_TYPE_SINT64:
	case PROTOBUF_C_TYPE_SFIXED64:
	case PROTOBUF_C_TYPE_UINT64:
	case PROTOBUF_C_TYPE_FIXED64:
	case PROTOBUF_C_TYPE_DOUBLE:
		return 8;
	case PROTOBUF_C_TYPE_INT32:
	case PROTOBUF_C_TYPE_SINT32:
	case PROTOBUF_C_TYPE_SFIXED32:
	case PROTOBUF_C_TYPE_UINT32:
	case PROTOBUF_C_TYPE_FIXED32:
	case PROTOBUF_C_TYPE_FLOAT:
	case PROTOBUF_C_TYPE_ENUM:
	default:
		return 4;
	}
}

static void free_text(char *text, const ProtobufCFieldDescriptor *field)
{
	if (text != (const char *)field->default_value)
		free(text);
}

static void change_text(char **text, const ProtobufCFieldDescriptor *field)
{
	uint8_t bytes[TEXT_MAX + 1];
	size_t len = *text ? strnlen(*text, TEXT_MAX) : 0;
	char *fresh;

	bytes_copy(bytes, *text, len);
	len = LLVMFuzzerMutate(bytes, len, TEXT_MAX);
	fresh = calloc(1, len + 1);
	if (!fresh)
		return;
	memcpy(fresh, bytes, len);
	free_text(*text, field);
	*text = fresh;
}

static void change_bytes(ProtobufCBinaryData *value)
{
	const size_t most = value->len + TEXT_MAX;
	uint8_t *fresh = malloc(most);

	if (!fresh)
		return;
	bytes_copy(fresh, value->data, value->len);
	free(value->data);
	value->len = LLVMFuzzerMutate(fresh, value->len, most);
	value->data = fresh;
}

/* Changes one value, of which there is room for one element. */
static void change_value(void *value, const ProtobufCFieldDescriptor *field, unsigned *seed)
{
	uint64_t number = 0;

	if (field->type == PROTOBUF_C_TYPE_MESSAGE) {
		if (!*(ProtobufCMessage **)value)
			*(ProtobufCMessage **)value = message_new(field->descriptor);
	} else if (field->type == PROTOBUF_C_TYPE_STRING) {
		change_text(value, field);
	} else if (field->type == PROTOBUF_C_TYPE_BYTES) {
		change_bytes(value);
	} else if (field->type == PROTOBUF_C_TYPE_BOOL) {
		*(protobuf_c_boolean *)value = !*(protobuf_c_boolean *)value;
	} else {
		memcpy(&number, value, size_of(field));
		number = field->type == PROTOBUF_C_TYPE_ENUM && draw(seed, 4) ? draw(seed, 12)
									      : draw_value(seed, number);
		memcpy(value, &number, size_of(field));
	}
}

static void free_value(void *value, const ProtobufCFieldDescriptor *field)
{
	if (field->type == PROTOBUF_C_TYPE_MESSAGE)
		message_free(*(ProtobufCMessage **)value);
	else if (field->type == PROTOBUF_C_TYPE_STRING)
		free_text(*(char **)value, field);
	else if (field->type == PROTOBUF_C_TYPE_BYTES)
		free(((ProtobufCBinaryData *)value)->data);
	memset(value, 0, size_of(field));
	if (field->type == PROTOBUF_C_TYPE_STRING)
		*(const char **)value = field->default_value;
}

static ProtobufCMessage *copy_message(const ProtobufCMessage *from)
{
	size_t len = protobuf_c_message_get_packed_size(from);
	uint8_t *bytes = malloc(len + 1);
	ProtobufCMessage *copy = NULL;

	if (bytes) {
		protobuf_c_message_pack(from, bytes);
		copy = protobuf_c_message_unpack(from->descriptor, NULL, len, bytes);
	}
	free(bytes);
	return copy;
}

static void copy_value(void *to, const void *from, const ProtobufCFieldDescriptor *field)
{
	memset(to, 0, size_of(field));
	if (field->type == PROTOBUF_C_TYPE_MESSAGE)
		*(ProtobufCMessage **)to = copy_message(*(ProtobufCMessage *const *)from);
	else if (field->type == PROTOBUF_C_TYPE_STRING)
		*(char **)to = strdup(*(char *const *)from);
	else if (field->type == PROTOBUF_C_TYPE_BYTES)
		(void)!message_bytes(to, ((const ProtobufCBinaryData *)from)->data,
				     ((const ProtobufCBinaryData *)from)->len);
	else
		memcpy(to, from, size_of(field));
}

/* Adds, copies, removes, exchanges or changes an element. */
static void change_list(ProtobufCMessage *message, const ProtobufCFieldDescriptor *field, unsigned *seed)
{
	const size_t size = size_of(field);
	size_t *n = member(message, field->quantifier_offset);
	char **list = member(message, field->offset), *more, swap[sizeof(ProtobufCBinaryData)];
	const unsigned what = draw(seed, 5);
	const size_t i = draw(seed, (unsigned)*n), k = draw(seed, (unsigned)*n);

	if (what <= 1 || !*n) {
		more = reallocarray(*list, *n + 1, size);
		if (!more)
			return;
		*list = more;
		memset(more + *n * size, 0, size);
		if (field->type == PROTOBUF_C_TYPE_STRING)
			((char **)(void *)more)[*n] = strdup("");
		if (what && *n) {
			if (field->type == PROTOBUF_C_TYPE_STRING)
				free(((char **)(void *)more)[*n]);
			copy_value(more + *n * size, more + i * size, field);
		} else {
			change_value(more + *n * size, field, seed);
		}
		(*n)++;
	} else if (what == 2) {
		free_value(*list + i * size, field);
		memmove(*list + i * size, *list + (i + 1) * size, (*n - i - 1) * size);
		(*n)--;
	} else if (what == 3) {
		memcpy(swap, *list + i * size, size);
		memmove(*list + i * size, *list + k * size, size);
		memcpy(*list + k * size, swap, size);
	} else {
		change_value(*list + i * size, field, seed);
	}
}

static void clear_one_of(ProtobufCMessage *message, uint32_t *which)
{
	const ProtobufCFieldDescriptor *field =
		protobuf_c_message_descriptor_get_field(message->descriptor, *which);

	if (field)
		free_value(member(message, field->offset), field);
	*which = 0;
}

static void change_field(ProtobufCMessage *message, unsigned *seed)
{
	const ProtobufCMessageDescriptor *descriptor = message->descriptor;
	const ProtobufCFieldDescriptor *field;
	void *value;

	if (!descriptor->n_fields)
		return;
	field = &descriptor->fields[draw(seed, descriptor->n_fields)];
	value = member(message, field->offset);
	if (field->label == PROTOBUF_C_LABEL_REPEATED) {
		change_list(message, field, seed);
		return;
	}
	if (is_one_of(field) && !is_set(message, field)) {
		clear_one_of(message, member(message, field->quantifier_offset));
		memset(value, 0, size_of(field));
		*(uint32_t *)member(message, field->quantifier_offset) = field->id;
	}
	if (field->type == PROTOBUF_C_TYPE_MESSAGE && *(ProtobufCMessage **)value && !is_one_of(field))
		free_value(value, field);
	else
		change_value(value, field, seed);
}

size_t fuzz_mutate_message(const ProtobufCMessageDescriptor *descriptor, uint8_t *data, size_t size,
			   size_t max, unsigned seed)
{
	ProtobufCMessage *message = protobuf_c_message_unpack(descriptor, NULL, size, data);
	unsigned state = seed;
	size_t len;

	if (!message)
		message = message_new(descriptor);
	if (!message)
		return size;
	for (unsigned rounds = 1 + draw(&state, 4); rounds; rounds--) {
		struct nodes nodes = {.seed = &state};

		list_nodes(message, &nodes);
		change_field(nodes.v[draw(&state, (unsigned)nodes.n)], &state);
	}
	len = protobuf_c_message_get_packed_size(message);
	if (len <= max)
		protobuf_c_message_pack(message, data);
	message_free(message);
	return len <= max ? len : size;
}

/* ---- scripts ---- */

bool fuzz_script_next(const uint8_t **at, size_t *left, size_t nkinds, struct fuzz_record *out)
{
	size_t len;

	if (*left < RECORD_HEAD)
		return false;
	len = (*at)[1] | (size_t)(*at)[2] << 8;
	*out = (struct fuzz_record){**at % (unsigned)nkinds, *at + RECORD_HEAD, len};
	if (len > *left - RECORD_HEAD)
		out->len = *left - RECORD_HEAD;
	*at += RECORD_HEAD + out->len;
	*left -= RECORD_HEAD + out->len;
	return true;
}

struct script {
	struct fuzz_record v[RECORDS_MAX];
	size_t n;
	uint8_t *room; /* of the changed record */
};

static void change_record(const struct fuzz_kind *kinds, struct fuzz_record *record, uint8_t *room,
			  size_t most, unsigned seed)
{
	const ProtobufCMessageDescriptor *descriptor = kinds[record->kind].descriptor;

	if (record->len > most)
		record->len = most;
	bytes_copy(room, record->data, record->len);
	record->len = descriptor ? fuzz_mutate_message(descriptor, room, record->len, most, seed)
				 : LLVMFuzzerMutate(room, record->len, most);
	record->data = room;
}

static void change_script(const struct fuzz_kind *kinds, size_t nkinds, struct script *script, size_t most,
			  unsigned *seed)
{
	const unsigned what = draw(seed, 10);
	const size_t i = draw(seed, (unsigned)script->n), k = draw(seed, (unsigned)script->n);
	struct fuzz_record swap;

	if (!script->n || (what == 0 && script->n < RECORDS_MAX)) {
		script->v[script->n] = (struct fuzz_record){draw(seed, (unsigned)nkinds), NULL, 0};
		change_record(kinds, &script->v[script->n++], script->room, most, *seed);
	} else if (what == 1 && script->n < RECORDS_MAX) {
		script->v[script->n++] = script->v[i];
	} else if (what == 2) {
		memmove(&script->v[i], &script->v[i + 1], (script->n - i - 1) * sizeof(script->v[0]));
		script->n--;
	} else if (what == 3) {
		swap = script->v[i];
		script->v[i] = script->v[k];
		script->v[k] = swap;
	} else {
		change_record(kinds, &script->v[i], script->room, most, *seed);
	}
}

size_t fuzz_mutate_script(const struct fuzz_kind *kinds, size_t nkinds, uint8_t *data, size_t size,
			  size_t max, unsigned seed)
{
	const size_t most = max > 65535 ? 65535 : max;
	struct script script = {.room = malloc(most + 1)};
	uint8_t *out = malloc(max + 1);
	const uint8_t *at = data;
	size_t left = size, len = 0;
	unsigned state = seed;

	while (script.n < RECORDS_MAX && fuzz_script_next(&at, &left, nkinds, &script.v[script.n]))
		script.n++;
	if (script.room && out) {
		change_script(kinds, nkinds, &script, most, &state);
		for (size_t i = 0; i < script.n; i++) {
			const struct fuzz_record *record = &script.v[i];

			if (len + RECORD_HEAD + record->len > max)
				break;
			out[len++] = (uint8_t)record->kind;
			out[len++] = (uint8_t)record->len;
			out[len++] = (uint8_t)(record->len >> 8);
			bytes_copy(out + len, record->data, record->len);
			len += record->len;
		}
		memcpy(data, out, len);
	}
	free(script.room);
	free(out);
	return len;
}

static void append(uint8_t **out, size_t *len, const void *data, size_t n)
{
	uint8_t *more = realloc(*out, *len + n + 1);

	if (!more)
		abort();
	*out = more;
	bytes_copy(more + *len, data, n);
	*len += n;
}

static void append_frame(uint8_t **out, size_t *len, uint32_t type, const void *data, size_t n)
{
	const uint32_t head[4] = {FRAME_MAGIC, FRAME_VERSION, type, (uint32_t)n};

	append(out, len, head, sizeof(head));
	append(out, len, data, n);
}

uint8_t *fuzz_script_bytes(const struct fuzz_kind *kinds, size_t nkinds,
			   void (*adjust)(ProtobufCMessage *message), const uint8_t *data, size_t size,
			   size_t *len)
{
	struct fuzz_record record;
	uint8_t *out = NULL;

	*len = 0;
	append(&out, len, NULL, 0);
	while (fuzz_script_next(&data, &size, nkinds, &record)) {
		const struct fuzz_kind *kind = &kinds[record.kind];
		ProtobufCMessage *message =
			kind->descriptor && adjust
				? protobuf_c_message_unpack(kind->descriptor, NULL, record.len, record.data)
				: NULL;
		ProtobufCBinaryData packed = {0};

		if (message)
			adjust(message);
		if (message && message_packed(&packed, message) == 0)
			append_frame(&out, len, kind->type, packed.data, packed.len);
		else if (kind->descriptor)
			append_frame(&out, len, kind->type, record.data, record.len);
		else
			append(&out, len, record.data, record.len);
		free(packed.data);
		message_free(message);
	}
	return out;
}
