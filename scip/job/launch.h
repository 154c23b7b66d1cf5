/*
 * The first process of a job, between fork and exec: streams, process group, terminal, signals as the console
 * had them, no_new_privs, the born filter, exec. And a husk of a restore, which stops before it would execute
 * anything.
 *
 * The program leads a group of its own in the keeper's session, as a shell's job does: a group is orphaned,
 * and the kernel drops a SIGTSTP to it, unless some member's parent is in the same session and another group.
 */
#ifndef SCIP_JOB_LAUNCH_H
#define SCIP_JOB_LAUNCH_H

#include <linux/filter.h>

#include "scip/job/job.h"

/* Forks the program's process. It waits, all signals blocked, until a scip has seized it. Returns its pid or
 * -errno; *report reads events (event_read()): EXECUTING or FAILED, and end of file once the program has been
 * executed. */
must_check int launch_program(struct job *job, const struct sock_fprog *filter, int *report, struct err *err);

/* Forks a husk: behind `filter`, streams closed, waiting likewise. Returns its pid or -errno; *ready reads
 * end of file once it waits (or is gone). */
must_check int launch_husk(struct job *job, const struct sock_fprog *filter, int *ready, struct err *err);

#endif
