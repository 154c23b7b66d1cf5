/*
 * Requests between hosts. A request from another daemon is handled like a local user's: on a connection of
 * its own inside this daemon, whose other end wraps the replies into messages to the peer.
 */
#ifndef PBEAMD_TRANSPORT_REMOTE_REQUEST_H
#define PBEAMD_TRANSPORT_REMOTE_REQUEST_H

#include "pbeamd/transport/cluster.h"

/* Receives a frame of the reply: any number of RPC_PROGRESS, then one RPC_REPLY or RPC_FAILED. */
typedef void (*remote_frame_fn)(void *arg, uint32_t type, const void *body, size_t len);

/* Sends a request to a host (NULL: this one). Returns a number for remote_cancel(), or -errno. `came` is not
 * called before it returns. */
must_check int64_t remote_ask(struct cluster *cluster, struct host *host, uint32_t type, const void *body,
			      size_t len, remote_frame_fn came, void *arg, struct err *err);
/* The reply is not wanted any more: `came` is not called again. */
void remote_cancel(struct cluster *cluster, int64_t id);

/* Takes a frame of a request or a reply. False: malformed. */
bool remote_frame(struct peer *peer, const struct frame *frame);
/* The peer is lost: requests to it end with -ECONNRESET, its requests are cancelled. */
void remote_lost(struct peer *peer);
void remote_close(struct cluster *cluster);
void remote_leave_child(const struct cluster *cluster);

#endif
