/*
 * Frames on the sockets between our own programs: a 16-byte header, a protobuf message, and up to 16
 * descriptors (SCM_RIGHTS). Connecting and accepting check that the peer runs as the same user (SO_PEERCRED).
 * A frame that is malformed, too large or truncated ends the connection with an error.
 */
#ifndef PROTO_FRAME_H
#define PROTO_FRAME_H

#include <protobuf-c/protobuf-c.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/err.h"

#define FRAME_MAGIC    0x4d454250u /* "PBEM" */
#define FRAME_VERSION  1u
#define FRAME_BODY_MAX (256u << 20)
#define FRAME_FDS_MAX  16
#define FRAME_HEAD                                                                                           \
	16 /* bytes: magic, version and descriptor count (16 bits each), type, body length; little endian */

struct frame {
	uint32_t type; /* a value of the protocol's enum */
	size_t len;
	uint8_t *body; /* malloc'd */
	int fds[FRAME_FDS_MAX];
	int nfds; /* owned: frame_free() closes those not taken (set to -1) */
};

/* Sends one message; blocking. `fds` stay the caller's. A NULL `message` sends an empty body. */
must_check int frame_send(int sock, uint32_t type, const ProtobufCMessage *message, const int *fds, int nfds,
			  struct err *err);

/* Receives one frame; blocking. Returns 1, 0 at end of file between frames, or -errno: -EPROTO for bytes
 * that are no frame, -EPIPE if the connection ended within one, -ETIMEDOUT if the socket's SO_RCVTIMEO has
 * passed. */
must_check int frame_recv(int sock, struct frame *out, struct err *err);
/* The same with bytes from `read`, which returns their number, 0 at the end, or -errno. There are no
 * descriptors. */
typedef ssize_t (*frame_read_fn)(void *arg, void *to, size_t len);
must_check int frame_recv_from(frame_read_fn read, void *arg, struct frame *out, struct err *err);
/* Closes the descriptors that were not taken and frees the body; `frame` is empty afterwards. */
void frame_free(struct frame *frame);

/* ---- piecewise, for event loops ---- */
/* The part of a frame received so far; zeroed to begin with. */
struct frame_reader {
	struct frame frame;
	uint8_t head[FRAME_HEAD];
	size_t head_have, body_have, body_room;
	frame_read_fn read; /* NULL: from the socket */
	void *read_arg;
};
/* Reads from a non-blocking socket. Returns 1 with a whole frame in *out, 0 at end of file, -EAGAIN if the
 * frame is not complete, or another -errno, after which the connection cannot be used. */
must_check int frame_reader_step(struct frame_reader *reader, int sock, struct frame *out, struct err *err);
/* Drops a half-read frame. */
void frame_reader_reset(struct frame_reader *reader);
/* Makes the bytes of a whole frame, malloc'd; `nfds` descriptors are to be sent with the first of them. */
must_check int frame_encode(uint32_t type, const ProtobufCMessage *message, int nfds, uint8_t **out,
			    size_t *len, struct err *err);
/* Sends some of `len` bytes, the descriptors with the first. Returns the bytes sent (> 0), -EAGAIN or another
 * -errno. */
must_check ssize_t frame_send_some(int sock, const void *bytes, size_t len, const int *fds, int nfds);

/* Unpacks the body as a message of `descriptor`; NULL with `err` set if it is malformed. Freed with
 * message_free(). */
ProtobufCMessage *frame_unpack(const struct frame *frame, const ProtobufCMessageDescriptor *descriptor,
			       struct err *err);

/* Connect to, or listen on, a UNIX stream socket of the user. A path longer than sun_path is reached
 * through a descriptor of its directory (/proc/self/fd/N/name). Connecting and accepting check
 * SO_PEERCRED. Return the descriptor or -errno. */
must_check int frame_connect(const char *path, struct err *err);
/* Connects to the scip ("scip") or keeper ("job") with process number `pid`: RUNTIME/ROLE/PID. If its socket
 * was removed, it is asked (SIGIO) to make it again, and gets a second for that. */
must_check int frame_connect_to(const char *role, pid_t pid, struct err *err);
/* Replaces a socket on which no process listens any more; -EADDRINUSE if a process does. */
must_check int frame_listen(const char *path, struct err *err);
must_check int frame_accept(int listener, struct err *err);

#endif
