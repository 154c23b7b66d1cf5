/*
 * Requests over hosts. A request that another daemon passes on is answered as if one of our own users had
 * made it: on a connection of its own inside this daemon, whose other end wraps what comes into messages to
 * the peer.
 */
#ifndef PBEAMD_REMOTE_H
#define PBEAMD_REMOTE_H

#include "pbeamd/cluster/cluster.h"

/* A frame of the answer: RPC_PROGRESS, any number of them, then once RPC_REPLY or RPC_FAILED. */
typedef void (*remote_frame_fn)(void *arg, uint32_t type, const void *body, size_t len);

/* Asks a host, this one with host NULL. Returns a number for remote_cancel(), or -errno with a sentence;
 * `came` is never called before it returns. */
must_check int64_t remote_ask(struct cluster *cluster, struct host *host, uint32_t type, const void *body,
			      size_t len, remote_frame_fn came, void *arg, struct err *err);
/* Nobody wants the answer any more; `came` is not called again. */
void remote_cancel(struct cluster *cluster, int64_t id);

/* ---- for peer.c ---- */
/* A frame of a peer that is one of ours. False: malformed. */
bool remote_frame(struct peer *peer, const struct frame *frame);
/* The peer is gone: what was asked there ends with -ECONNRESET, what it asked is cancelled. */
void remote_lost(struct peer *peer);
void remote_close(struct cluster *cluster);
void remote_leave_child(const struct cluster *cluster);

/* ---- pass.c ---- */
/* A request about `target` (NULL: about none) that is for another host is passed on there: 1, it will be
 * answered; 0, it is for this host; -errno with a sentence. */
must_check int pass_elsewhere(struct connection *connection, const Pbeam__Target *target,
			      const struct frame *frame, struct err *err);
/* The connection is gone. */
void pass_forget(struct connection *connection);

/* ---- scatter.c ---- */
/* Called for each host: type RPC_REPLY or RPC_FAILED and the answer, or DAEMON_NONE where there is
 * none.
 */
typedef void (*scatter_part_fn)(void *arg, const char *host, uint32_t type, const void *body, size_t len);
/* Once, later, after all of them; the scatter is gone by then. */
typedef void (*scatter_done_fn)(void *arg);
struct scatter_request {
	uint32_t type;
	const void *body;
	size_t len;
	bool here;	     /* this host is asked as well */
	unsigned patience_s; /* 0: some seconds */
	scatter_part_fn came;
	scatter_done_fn done;
};
struct scatter;
/* The same of all hosts. `came` may be called before it returns, `done` not. NULL
 * without memory. */
must_check struct scatter *scatter_begin(struct cluster *cluster, const struct scatter_request *request,
					 void *arg);
void scatter_cancel(struct scatter *scatter);

/* ---- gather.c ---- */
/* The processes of all hosts: `done` is called once, later, with a list that is its to free (NULL without
 * memory). */
typedef void (*gather_fn)(void *arg, Pbeam__ProcessList *list);
struct gather;
must_check struct gather *gather_begin(struct cluster *cluster, gather_fn done, void *arg);
void gather_cancel(struct gather *gather);

/* ---- log_all.c ---- */
/* The checkpoints that all hosts have of what a user names: `done` is called once, later, with a list that is
 * its to free (NULL without memory). */
typedef void (*log_all_fn)(void *arg, Pbeam__CheckpointLog *all);
struct log_all;
must_check struct log_all *log_all_begin(struct cluster *cluster, const Pbeam__Target *target,
					 log_all_fn done, void *arg);
void log_all_cancel(struct log_all *log);

#endif
