#include "proto/message.h"

#include <errno.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"

/* ---- unpacking ---- */

struct wire {
	const uint8_t *at, *end;
};

enum wire_type { WIRE_VARINT = 0, WIRE_64BIT = 1, WIRE_LENGTH = 2, WIRE_32BIT = 5, WIRE_TAG_BITS = 3 };

static bool wire_take_varint(struct wire *wire, uint64_t *out)
{
	*out = 0;
	for (unsigned shift = 0; shift < 64 && wire->at < wire->end; shift += 7) {
		const uint8_t byte = *wire->at++;

		*out |= (uint64_t)(byte & 0x7f) << shift;
		if (!(byte & 0x80))
			return true;
	}
	return false;
}

/* Takes the next field. *bytes is what a field with a length has, NULL for others. False: malformed, or the
 * end. */
static bool wire_take_field(struct wire *wire, uint64_t *tag, const uint8_t **bytes, uint64_t *len)
{
	*bytes = NULL;
	if (!wire_take_varint(wire, tag))
		return false;
	switch (*tag & ((1u << WIRE_TAG_BITS) - 1)) {
	case WIRE_VARINT:
		return wire_take_varint(wire, len);
	case WIRE_64BIT:
		*len = 8;
		break;
	case WIRE_32BIT:
		*len = 4;
		break;
	case WIRE_LENGTH:
		if (!wire_take_varint(wire, len))
			return false;
		*bytes = wire->at;
		break;
	default:
		return false;
	}
	if (*len > (size_t)(wire->end - wire->at))
		return false;
	wire->at += *len;
	return true;
}

/* The rest of a malformed message does not matter: unpacking stops there too. */
static bool nests_too_deep(const ProtobufCMessageDescriptor *descriptor, size_t size, const uint8_t *from,
			   unsigned depth)
{
	struct wire wire = {from, from + size};
	const uint8_t *bytes;
	uint64_t tag, len;

	while (wire.at < wire.end && wire_take_field(&wire, &tag, &bytes, &len)) {
		const ProtobufCFieldDescriptor *field =
			bytes ? protobuf_c_message_descriptor_get_field(descriptor,
									(unsigned)(tag >> WIRE_TAG_BITS))
			      : NULL;

		if (field && field->type == PROTOBUF_C_TYPE_MESSAGE &&
		    (depth == MESSAGE_DEPTH_MAX || nests_too_deep(field->descriptor, len, bytes, depth + 1)))
			return true;
	}
	return false;
}

ProtobufCMessage *message_unpack(const ProtobufCMessageDescriptor *descriptor, size_t len,
				 const uint8_t *bytes)
{
	static const uint8_t none[1];

	if (!len)
		bytes = none;
	return nests_too_deep(descriptor, len, bytes, 1)
		       ? NULL
		       : protobuf_c_message_unpack(descriptor, NULL, len, bytes);
}

/* ---- building ---- */

void *message_new(const ProtobufCMessageDescriptor *descriptor)
{
	ProtobufCMessage *message = calloc(1, descriptor->sizeof_message);

	if (message)
		protobuf_c_message_init(descriptor, message);
	return message;
}

/* Makes room for one more element. An array of an unpacked message has exactly `n` elements, one that was
 * grown here has more: the allocator knows which. */
static int message_grow_array(void **array, size_t n, size_t element)
{
	void *larger;

	if (*array && malloc_usable_size(*array) / element > n)
		return 0;
	larger = reallocarray(*array, n ? 2 * n : 1, element);
	if (!larger)
		return -ENOMEM;
	*array = larger;
	return 0;
}

int message_append(void *array, size_t *n, ProtobufCMessage *item)
{
	void **where = array;

	if (!item)
		return -ENOMEM;
	if (message_grow_array(where, *n, sizeof(item)) < 0) {
		message_free(item);
		return -ENOMEM;
	}
	((ProtobufCMessage **)*where)[(*n)++] = item;
	return 0;
}

void *message_append_new(void *array, size_t *n, const ProtobufCMessageDescriptor *descriptor)
{
	ProtobufCMessage *item = message_new(descriptor);

	return message_append(array, n, item) < 0 ? NULL : item;
}

int message_append_u64(uint64_t **array, size_t *n, uint64_t value)
{
	void *where = *array;

	if (message_grow_array(&where, *n, sizeof(value)) < 0)
		return -ENOMEM;
	*array = where;
	(*array)[(*n)++] = value;
	return 0;
}

int message_append_i32(int32_t **array, size_t *n, int32_t value)
{
	return message_append_u32((uint32_t **)(void *)array, n, (uint32_t)value);
}

int message_append_u32(uint32_t **array, size_t *n, uint32_t value)
{
	void *where = *array;

	if (message_grow_array(&where, *n, sizeof(value)) < 0)
		return -ENOMEM;
	*array = where;
	(*array)[(*n)++] = value;
	return 0;
}

int message_append_bytes(ProtobufCBinaryData **array, size_t *n, const void *data, size_t len)
{
	void *where = *array;
	int r = message_grow_array(&where, *n, sizeof(**array));

	if (r < 0)
		return r;
	*array = where;
	(*array)[*n] = (ProtobufCBinaryData){0};
	r = message_bytes(&(*array)[*n], data, len);
	*n += r == 0;
	return r;
}

int message_append_string(char ***array, size_t *n, const char *text)
{
	void *where = *array;
	char *copy;

	if (message_grow_array(&where, *n, sizeof(copy)) < 0)
		return -ENOMEM;
	*array = where;
	copy = strdup(text);
	if (!copy)
		return -ENOMEM;
	(*array)[(*n)++] = copy;
	return 0;
}

int message_bytes(ProtobufCBinaryData *field, const void *data, size_t len)
{
	uint8_t *copy = malloc(len ? len : 1);

	if (!copy)
		return -ENOMEM;
	bytes_copy(copy, data, len);
	free(field->data);
	field->data = copy;
	field->len = len;
	return 0;
}

int message_packed(ProtobufCBinaryData *field, const ProtobufCMessage *message)
{
	size_t len = protobuf_c_message_get_packed_size(message);
	uint8_t *data = malloc(len ? len : 1);

	if (!data)
		return -ENOMEM;
	protobuf_c_message_pack(message, data);
	free(field->data);
	*field = (ProtobufCBinaryData){len, data};
	return 0;
}

bool message_same_bytes(const ProtobufCBinaryData *a, const ProtobufCBinaryData *b)
{
	return a->len == b->len && bytes_equal(a->data, b->data, a->len);
}

char *message_dup_text(const ProtobufCBinaryData *field)
{
	return field->len ? strndup((const char *)field->data, field->len) : strdup("");
}

int message_text(ProtobufCBinaryData *field, const char *text)
{
	return message_bytes(field, text, strlen(text));
}

int message_string(char **field, const char *text)
{
	char *copy = strdup(text);

	if (!copy)
		return -ENOMEM;
	if (*field != protobuf_c_empty_string)
		free(*field);
	*field = copy;
	return 0;
}

/* Visits one field that may hold messages. A field of a oneof is present only if the oneof's case names
 * it. */
static int walk_field(const ProtobufCMessage *message, const ProtobufCFieldDescriptor *field,
		      int (*visit)(void *arg, ProtobufCMessage *message), void *arg)
{
	const uint8_t *base = (const uint8_t *)message;
	const void *value = base + field->offset;
	ProtobufCMessage *const *list;
	size_t n = 1;
	int r = 0;

	if (field->label == PROTOBUF_C_LABEL_REPEATED) {
		n = *(const size_t *)(const void *)(base + field->quantifier_offset);
		list = *(ProtobufCMessage *const *const *)value;
	} else {
		if ((field->flags & PROTOBUF_C_FIELD_FLAG_ONEOF) &&
		    *(const uint32_t *)(const void *)(base + field->quantifier_offset) != field->id)
			return 0;
		list = (ProtobufCMessage *const *)value;
	}
	for (size_t i = 0; i < n && r == 0; i++)
		if (list[i])
			r = message_walk(list[i], visit, arg);
	return r;
}

int message_walk(ProtobufCMessage *message, int (*visit)(void *arg, ProtobufCMessage *message), void *arg)
{
	int r = visit(arg, message);

	for (unsigned i = 0; r == 0 && i < message->descriptor->n_fields; i++)
		if (message->descriptor->fields[i].type == PROTOBUF_C_TYPE_MESSAGE)
			r = walk_field(message, &message->descriptor->fields[i], visit, arg);
	return r;
}

void message_free(void *message)
{
	if (message)
		protobuf_c_message_free_unpacked(message, NULL);
}
