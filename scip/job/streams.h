/*
 * The standard streams of a new job.
 */
#ifndef SCIP_JOB_STREAMS_H
#define SCIP_JOB_STREAMS_H

#include "scip/job/console.h"

/* Fills job->console and job->pty_master; streams_close() closes them again. */
must_check int streams_choose(struct keeper_options *job, const struct console_options *options,
			      struct err *err);
/* Prints, of a restored job, what has become of its streams. */
void streams_print_notes(void);
void streams_close(struct keeper_options *job);

#endif
