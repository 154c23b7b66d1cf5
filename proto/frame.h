/*
 * Framing on the sockets between our own programs: a 16-byte header, a protobuf message, up to 16 descriptors
 * beside it (SCM_RIGHTS). The peer is checked to be the same user (SO_PEERCRED) where the connection is made.
 * Whatever is malformed, too large or truncated ends the connection with a clear error.
 */
#ifndef PROTO_FRAME_H
#define PROTO_FRAME_H

#include <protobuf-c/protobuf-c.h>
#include <stdint.h>

#include "base/err.h"

#define FRAME_MAGIC    0x4d454250u /* "PBEM" */
#define FRAME_VERSION  1u
#define FRAME_BODY_MAX (256u << 20)
#define FRAME_FDS_MAX  16

struct frame {
	uint32_t type; /* a value of the protocol's enum */
	size_t len;
	uint8_t *body; /* malloc'd */
	int fds[FRAME_FDS_MAX];
	int nfds; /* owned: frame_free() closes those not taken (set to -1) */
};

/* Sends one message; blocking. `fds` stay the caller's. `message` NULL sends an empty body. */
must_check int frame_send(int sock, uint32_t type, const ProtobufCMessage *message, const int *fds, int nfds,
			  struct err *err);

/* Receives one frame; blocking. Returns 1, 0 at end of file, or -errno. */
must_check int frame_recv(int sock, struct frame *out, struct err *err);
void frame_free(struct frame *frame);

/* Unpacks the body as a message of `descriptor`; NULL with err set if it is not one. Free with
 * protobuf_c_message_free_unpacked. */
ProtobufCMessage *frame_unpack(const struct frame *frame, const ProtobufCMessageDescriptor *descriptor,
			       struct err *err);

/* Connects to, or listens on, a unix stream socket of the user. Path longer than sun_path is reached through
 * a directory descriptor (/proc/self/fd/N/name). Connecting and accepting check SO_PEERCRED. Returns the
 * descriptor or -errno. */
must_check int frame_connect(const char *path, struct err *err);
must_check int frame_listen(const char *path, struct err *err);
must_check int frame_accept(int listener, struct err *err);

#endif
