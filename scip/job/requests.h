/*
 * What the keeper is asked for by pbeamd and `scip attach` over the socket RUNTIME/job/PID
 * (proto/daemon.proto).
 */
#ifndef SCIP_JOB_REQUESTS_H
#define SCIP_JOB_REQUESTS_H

#include "proto/cluster.pb-c.h"
#include "proto/daemon.pb-c.h"
#include "proto/frame.h"
#include "scip/job/job.h"

/* Binds the socket. Clients wait until it is served. */
must_check int requests_open(struct job *job, struct err *err);
/* --dir: where the numbered checkpoints go. */
must_check int requests_place_checkpoints(const struct job *job, struct err *err);
/* Serves the socket: the program runs, or what is asked for can be told that it does not yet. */
/* False if the keeper's socket was removed, or the runtime directory is another one by now. */
bool requests_are_reachable(const struct job *job);
/* Makes the socket again, where it is looked for. */
must_check int requests_return(struct job *job, struct err *err);
must_check int requests_serve(struct job *job, struct err *err);
/* In a program that has succeeded another one (supervisor/successor.h): serves the socket that it has left.
 */
must_check int requests_adopt(struct job *job, int listener, const char *path, struct err *err);
int requests_listener(const struct job *job);
const char *requests_path(const struct job *job);
/* Removes the socket; connections end. */
void requests_close(struct job *job);

/* ---- for handlers ---- */

/* One connection, and the request that it brought. */
struct request {
	struct request *next;
	struct job *job;
	struct frame_reader reader;
	int fd;	      /* -1: the other side has gone while it was at work */
	void *saving; /* of request_save.c or request_migrate.c, while a coordinator is at work for it */
	bool cancels; /* ... which is to stop when the other side goes */
	void (*forget)(struct request *request); /* ... the client is gone */
	struct frame *frame;			 /* while a handler is called: its descriptors may be taken */
};

/* Blocking, on a socket that does not block: only for what fits into its buffer. */
void request_reply(struct request *request, uint32_t type, const ProtobufCMessage *message, const int *fds,
		   int nfds);
void request_refuse(struct request *request, const struct err *err);
/* Closes the connection; the request itself stays while a coordinator is at work for it. */
void request_hang_up(struct request *request);
/* No coordinator is at work for it any more: `request` is gone afterwards if its connection was. */
void request_idle(struct request *request);
/* The process that the target names: the job's first one if it names none. */
struct vpid request_target(const struct job *job, const Pbeam__Target *target);

/* Handlers: 0 when answered or begun, 1 when the connection was given away, -errno with the
 * sentence for the other side. */
/* ---- request_save.c ---- */
must_check int request_checkpoint(struct request *request, const ProtobufCMessage *message, struct err *err);
must_check int request_rollback(struct request *request, const ProtobufCMessage *message, struct err *err);
must_check int request_save_part(struct request *request, const ProtobufCMessage *message, struct err *err);
/* ---- request_migrate.c ---- */
must_check int request_migrate(struct request *request, const ProtobufCMessage *message, struct err *err);
must_check int request_receive(struct request *request, const ProtobufCMessage *message, struct err *err);
must_check int request_cancel(struct request *request, const ProtobufCMessage *message, struct err *err);
must_check int request_signal(struct request *request, const ProtobufCMessage *message, struct err *err);
must_check int request_orphan(struct request *request, const ProtobufCMessage *message, struct err *err);
/* ---- upgrade.c ---- */
must_check int request_upgrade(struct request *request, const ProtobufCMessage *message, struct err *err);
/* ---- request_stack.c ---- */
must_check int request_stack(struct request *request, const ProtobufCMessage *message, struct err *err);

#endif
