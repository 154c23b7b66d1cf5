/*
 * Where the job is found: the name table and the keeper's socket, in the runtime directory. At a logout that
 * directory may be removed while the job runs. The keeper then puts both back, into the directory that
 * base/dirs.h names at that moment.
 *
 * The kernel tells of removals by SIGIO (F_NOTIFY, fcntl(2)); inotify would cost one of the 128 instances
 * that a user has by default. A process that misses the socket sends the same signal (proto/frame.h).
 */
#ifndef SCIP_JOB_HOME_H
#define SCIP_JOB_HOME_H

#include "scip/job/job.h"

/* Begins to watch. Without it the job is still found after a SIGIO. */
void home_open(struct job *job);
/* A SIGIO came. `wanted`: from a process that misses the socket. */
void home_check(struct job *job, bool wanted);
/* The job ends: what home_check() may have made is removed. */
void home_close(struct job *job);

#endif
