/*
 * Builds protobuf-c messages. Everything is allocated as protobuf-c's unpacking does it, so that
 * message_free() on the outermost message frees it all.
 */
#ifndef PROTO_MESSAGE_H
#define PROTO_MESSAGE_H

#include <protobuf-c/protobuf-c.h>
#include <stdbool.h>

#include "base/err.h"

/* A new message with default values; NULL without memory. */
void *message_new(const ProtobufCMessageDescriptor *descriptor);

/* Appends `item` to a repeated field of messages. Takes ownership, also on failure (-ENOMEM). */
must_check int message_append(void *array, size_t *n, ProtobufCMessage *item);

/* Appends a new message to a repeated field and returns it; NULL without memory. */
void *message_append_new(void *array, size_t *n, const ProtobufCMessageDescriptor *descriptor);
#define message_add(owner, field, descriptor)                                                                \
	message_append_new(&(owner)->field, &(owner)->n_##field, &(descriptor))

/* Appends to repeated numbers. -ENOMEM. */
must_check int message_append_u64(uint64_t **array, size_t *n, uint64_t value);
must_check int message_append_i32(int32_t **array, size_t *n, int32_t value);
must_check int message_append_u32(uint32_t **array, size_t *n, uint32_t value);

/* Appends a copy to repeated bytes. -ENOMEM. */
must_check int message_append_bytes(ProtobufCBinaryData **array, size_t *n, const void *data, size_t len);
/* Appends a copy to repeated strings. -ENOMEM. */
must_check int message_append_string(char ***array, size_t *n, const char *text);

/* Sets a bytes field to a copy, and frees the previous value. -ENOMEM. */
must_check int message_bytes(ProtobufCBinaryData *field, const void *data, size_t len);
/* Compares two fields. An empty one has no address, which memcmp() does not accept. */
bool message_same_bytes(const ProtobufCBinaryData *a, const ProtobufCBinaryData *b);
must_check int message_text(ProtobufCBinaryData *field, const char *text);
/* Copies a bytes field, up to its first zero, to a string of the caller's. NULL without memory. */
char *message_dup_text(const ProtobufCBinaryData *field);

/* Sets a bytes field to a packed message, and frees the previous value. -ENOMEM. */
must_check int message_packed(ProtobufCBinaryData *field, const ProtobufCMessage *message);

/* Sets a string field to a copy. -ENOMEM. */
must_check int message_string(char **field, const char *text);

/* Calls `visit` for the message and every message that is set in it, outer ones first, until `visit`
 * returns another value than 0, and returns that value. Uses the schema's descriptors, so that no field is
 * forgotten; the schema must not be recursive. */
int message_walk(ProtobufCMessage *message, int (*visit)(void *arg, ProtobufCMessage *message), void *arg);

/* Unpacks bytes that need not be a message; NULL if they are none, or nest deeper than MESSAGE_DEPTH_MAX.
 * Some messages of the schema contain themselves, and protobuf-c's unpacking would recurse as often as the
 * bytes want. */
enum { MESSAGE_DEPTH_MAX = 16 };
ProtobufCMessage *message_unpack(const ProtobufCMessageDescriptor *descriptor, size_t len,
				 const uint8_t *bytes);

/* Frees a message from message_new() or from unpacking; NULL is allowed. */
void message_free(void *message);

#endif
