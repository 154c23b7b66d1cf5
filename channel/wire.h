/* Messages of a migration on a channel: frames, bulk data after them, and the peer's failure instead of
 * either. */
#ifndef CHANNEL_WIRE_H
#define CHANNEL_WIRE_H

#include <protobuf-c/protobuf-c.h>
#include <stdint.h>

#include "base/err.h"

struct frame;

/* Receives the next frame, which must be of this type; *out (NULL: the body does not matter) is to be freed
 * with message_free(). Returns 0, the peer's error when it reports a failure, -EPIPE when it is gone, or
 * -errno. */
must_check int wire_take(int channel, uint32_t type, const ProtobufCMessageDescriptor *body, void *out,
			 struct err *err);
/* Receives the next frame of any type but those of a failure. 0 or -errno as above. */
must_check int wire_take_any(int channel, struct frame *frame, struct err *err);
/* The two halves of wire_take(), for frames received in another way. wire_received() checks the result of
 * frame_recv(); wire_is() unpacks and frees the frame if it is of this type. */
must_check int wire_received(int r, struct frame *frame, struct err *err);
must_check int wire_is(struct frame *frame, uint32_t type, const ProtobufCMessageDescriptor *body, void *out,
		       struct err *err);

enum { WIRE_PART_MAX = 4 << 20 /* bytes of bulk data with one MIGRATE_FILE */ };
/* Receives bulk data. 0 or -errno. */
must_check int wire_take_bytes(int channel, void *to, uint64_t bytes, struct err *err);
/* Sends a frame. 0, the peer's error when it has closed the channel, or -errno. */
must_check int wire_send(int channel, uint32_t type, const ProtobufCMessage *message, struct err *err);
/* Sends a part of the file; `what` is in the message. 0, the peer's error when it has closed the channel, or
 * -errno. */
must_check int wire_send_range(int channel, int file, uint64_t from, uint64_t bytes, const char *what,
			       struct err *err);
/* Receives bulk data into a new memory file. Returns the descriptor, which the caller owns, or -errno. */
must_check int wire_take_file(int channel, uint64_t bytes, struct err *err);

#endif
