/*
 * The first process of a job, between fork and exec: streams, session, terminal, signals as the console had
 * them, no_new_privs, the born filter, exec. And a husk of a restore, which stops before it would execute
 * anything.
 */
#ifndef SCIP_JOB_LAUNCH_H
#define SCIP_JOB_LAUNCH_H

#include <linux/filter.h>

#include "scip/job/keeper.h"

/* Why a program could not be executed: what the child sends before it gives up. */
struct launch_failure {
	int32_t status; /* 125, 126, 127 */
	char text[ERR_TEXT_MAX];
};

/* Forks the program's process. It waits, all signals blocked, until a scip has seized it. Returns its pid or
 * -errno; *report reads a struct launch_failure, or end of file once the program has been executed. */
must_check int launch_program(struct keeper *keeper, const struct sock_fprog *filter, int *report,
			      struct err *err);

/* Forks a husk: behind `filter`, streams closed, waiting likewise. Returns its pid or -errno. */
must_check int launch_husk(struct keeper *keeper, const struct sock_fprog *filter, struct err *err);

#endif
