/*
 * The console of the job, if there is one, and what the job wrote to its pty while there was
 * none.
 */
#ifndef SCIP_JOB_VIEWER_H
#define SCIP_JOB_VIEWER_H

#include "scip/job/event.h"
#include "scip/job/job.h"

/* `sock` is the console that started us (-1: none did); it is ours from now on. Events can be sent. */
must_check int viewer_open(struct job *job, int sock, struct err *err);
/* Notices the console's end, in the job's loop. From then on the pty's output is kept here for the next one:
 * the newest VIEWER_BACKLOG bytes. */
must_check int viewer_watch(struct job *job, struct err *err);
enum { VIEWER_BACKLOG = 256 << 10 };
/* For another program that succeeds this one (supervisor/successor.h): the console's socket, -1 none, and the
 * bytes that were kept. -ENOMEM. */
must_check int viewer_save(const struct job *job, int32_t *sock, ProtobufCBinaryData *backlog);
must_check int viewer_adopt(struct job *job, int sock, const ProtobufCBinaryData *backlog, struct err *err);
/* Sends an event to the console, if there is one. */
void viewer_tell(struct job *job, Pbeam__KeeperEvent__Type type, int value, const char *text);
/* Another console takes over: the present one gets an event, and is forgotten. *sock (the new one's end of
 * its socket) and *backlog (a file with what is to be shown first, -1 for none) are the caller's. */
must_check int viewer_replace(struct job *job, int *sock, int *backlog, struct err *err);
/* There is no console from now on, unless one is there already. */
void viewer_alone(struct job *job);

#endif
