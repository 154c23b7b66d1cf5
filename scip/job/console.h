/*
 * The consoles: `scip run` and `scip restore` in the foreground, and what they do before they go to the
 * background with -d. attach.h is the third kind.
 */
#ifndef SCIP_JOB_CONSOLE_H
#define SCIP_JOB_CONSOLE_H

#include <stdbool.h>

#include "scip/job/keeper.h"
#include "scip/job/relay.h"

struct console_options {
	bool detach;	      /* -d */
	bool close_inherited; /* --close-inherited */
	bool image_streams; /* of a restore: the streams are made as the image says, none of ours is passed on
			       (pbeamd) */
};

/* Starts the job and is its console to the end. Fills in job->console, pty_master and signal_mask, nothing
 * else. Prints messages; returns the exit status. */
int console_run(struct keeper_options *job, const struct console_options *options);

/* Is the console of a running job until it has nothing more to do: relay_run() with these options, whose
 * `names` is filled in here. Prints messages; returns the exit status: the program's, as a shell
 * shows it, or 0 after the detach key. */
int console_show(struct relay_options *options);

#endif
