/*
 * Requests to pbeamd: a connection with its greeting, one request, progress, one reply.
 */
#ifndef PROTO_ASK_H
#define PROTO_ASK_H

#include "base/err.h"
#include "proto/cluster.pb-c.h"
#include "proto/daemon.pb-c.h"
#include "proto/frame.h"

#define DAEMON_PROTOCOL 2u /* the version in Hello */

/* Connects, starting pbeamd if necessary, and greets it as `program`. Returns the socket, which the caller
 * owns, or -errno. */
must_check int ask_open(const char *program, struct err *err);

typedef void (*ask_progress_fn)(const Pbeam__Progress *progress);

/* Sends one request and waits for the reply. *answer is the frame of the reply, with its descriptors, to
 * be freed with frame_free(). `progress` may be NULL. A refusal is an error with pbeamd's message and
 * code. -EPIPE if pbeamd ended before it replied, -ETIMEDOUT if the socket's SO_RCVTIMEO has passed. */
must_check int ask_frame(int sock, uint32_t type, const ProtobufCMessage *request, ask_progress_fn progress,
			 struct frame *answer, struct err *err);
/* As ask_frame(); *out (a pointer to a pointer to the message of `descriptor`) is freed with message_free().
 */
must_check int ask_message(int sock, uint32_t type, const ProtobufCMessage *request, ask_progress_fn progress,
			   const ProtobufCMessageDescriptor *descriptor, void *out, struct err *err);
/* Lists the hosts of the cluster, this host first; *out is to be freed with message_free(). Without a
 * cluster the list is empty, or this host has no name. */
must_check int ask_hosts(const char *program, Pbeam__HostList **out, struct err *err);

#endif
