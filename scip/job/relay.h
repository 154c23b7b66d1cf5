/*
 * A console at work: between the user's terminal and the job's pty, and between signals and the program,
 * until the keeper reports that the program has ended.
 */
#ifndef SCIP_JOB_RELAY_H
#define SCIP_JOB_RELAY_H

#include <signal.h>
#include <stdbool.h>

#include "namespace/names.h"

struct relay_options {
	int events; /* from the keeper */
	int master; /* of the job's pty, -1 when it has none */
	struct vpid vpid;
	struct names *names;
	bool may_detach; /* Ctrl-] d leaves the job alone */
	int backlog;	 /* a file with what is shown first, or -1 */
};

enum relay_end {
	RELAY_ENDED,	/* *status is the program's wait status */
	RELAY_DETACHED, /* by the detach key */
	RELAY_TAKEN,	/* another console took over */
	RELAY_HUNG_UP,	/* the user's terminal is gone */
	RELAY_LOST,	/* the keeper is gone without a word: killed */
};

/* Returns when the console has nothing more to do; the user's terminal is as it was. All signals that can be
 * passed on must be blocked by relay_block_signals() before the keeper is started. */
enum relay_end relay_run(const struct relay_options *options, int *status);

/* Closes the descriptors. */
void relay_close(struct relay_options *options);

/* Blocks what relay_run() passes on; *old is the mask as it was, for the program. */
void relay_block_signals(sigset_t *old);

#endif
