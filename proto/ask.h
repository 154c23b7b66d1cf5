/*
 * Asking pbeamd: a connection that is greeted, one request, progress, one answer.
 */
#ifndef PROTO_ASK_H
#define PROTO_ASK_H

#include "base/err.h"
#include "proto/cluster.pb-c.h"
#include "proto/daemon.pb-c.h"
#include "proto/frame.h"

#define DAEMON_PROTOCOL 2u /* of Hello */

/* Connects, starting pbeamd if need be, and greets it as `program`. The socket, the caller's, or -errno. */
must_check int ask_open(const char *program, struct err *err);

typedef void (*ask_progress_fn)(const Pbeam__Progress *progress);

/* One request; blocking. *answer is the frame of the reply, with its descriptors, to be freed with
 * frame_free(). `progress` may be NULL. A refusal is an error with pbeamd's sentence and code; -EPIPE when it
 * went away before it answered, -ETIMEDOUT where the socket has a SO_RCVTIMEO that passed. */
must_check int ask_frame(int sock, uint32_t type, const ProtobufCMessage *request, ask_progress_fn progress,
			 struct frame *answer, struct err *err);
/* As ask_frame(); *out (a pointer to a pointer to the message of `descriptor`) is freed with message_free().
 */
must_check int ask_message(int sock, uint32_t type, const ProtobufCMessage *request, ask_progress_fn progress,
			   const ProtobufCMessageDescriptor *descriptor, void *out, struct err *err);
/* The hosts of the cluster, the one that is asked first; *out is to be freed with message_free(). Without a
 * cluster the list is empty, or that one has no name. */
must_check int ask_hosts(const char *program, Pbeam__HostList **out, struct err *err);

#endif
