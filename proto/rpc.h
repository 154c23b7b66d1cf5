/*
 * Requests and replies over the sockets between our programs, blocking. Frames (proto/frame.h) carry them.
 *
 * The client sends a frame of a request type and receives RPC_REPLY, or RPC_FAILED with the reason; any
 * number of RPC_PROGRESS may precede the reply. Requests on one connection are answered in order. The two
 * halves of a call are public, so that several servers can work at the same time.
 *
 * `peer` names the other side in messages: "pbeamd", "host b". -EPIPE always means that the connection has
 * ended; a server that failed with -EPIPE itself is reported as -EIO.
 */
#ifndef PROTO_RPC_H
#define PROTO_RPC_H

#include "base/err.h"
#include "proto/frame.h"
#include "proto/rpc.pb-c.h"

/* Limits the time that a receive on `sock` waits for more bytes, 0 for no limit. After that receiving fails
 * with -ETIMEDOUT. */
void rpc_set_timeout(int sock, unsigned timeout_ms);

/* ---- the client ---- */
/* Receives one frame of any type but RPC_FAILED. The caller frees it with frame_free(). -EPIPE when the
 * connection has ended, -ETIMEDOUT, -EPROTO for what is no frame, or the error that the server has sent. */
must_check int rpc_receive_frame(int sock, const char *peer, struct frame *out, struct err *err);
/* The check that rpc_receive_frame() makes, for frames received in another way: `r` is what frame_recv()
 * returned. Frees the frame on error. */
must_check int rpc_check_frame(int r, const char *peer, struct frame *frame, struct err *err);
/* Receives one message of this type. *out (a pointer to a pointer to the message; NULL: the body is ignored)
 * is freed with message_free(). */
must_check int rpc_receive(int sock, const char *peer, uint32_t type,
			   const ProtobufCMessageDescriptor *descriptor, void *out, struct err *err);
/* The second half of that, for a frame that has been received. Frees the frame. */
must_check int rpc_unpack(struct frame *frame, const char *peer, uint32_t type,
			  const ProtobufCMessageDescriptor *descriptor, void *out, struct err *err);
/* Sends one request and receives the reply. */
must_check int rpc_call(int sock, const char *peer, uint32_t type, const ProtobufCMessage *request,
			const ProtobufCMessageDescriptor *descriptor, void *out, struct err *err);

/* ---- the server ---- */
must_check int rpc_reply(int sock, const ProtobufCMessage *reply, struct err *err);
/* Sends RPC_FAILED. A client that has left is no error. */
void rpc_refuse(int sock, const struct err *why);
/* The message of RPC_FAILED, for event loops. It borrows the text. */
Pbeam__Failed rpc_failed(const struct err *why);
/* Converts the message to an error; returns its negative code. */
int rpc_take_failure(const Pbeam__Failed *failed, struct err *err);

#endif
