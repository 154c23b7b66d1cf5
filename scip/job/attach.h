/*
 * `scip attach`: this terminal becomes the console of a job that runs. `pbeamctl attach` executes it.
 */
#ifndef SCIP_JOB_ATTACH_H
#define SCIP_JOB_ATTACH_H

#include "base/err.h"

/* `target` is a vpid or a job's name. Returns the exit status: the program's, or 0 after the detach key. */
int attach_run(const char *target);

/* ---- attach_host.c: of a job whose console is on another host ---- */
/* Shows it on this terminal. Returns the exit status of the `scip attach` there, or -errno. */
must_check int attach_there(const char *target, const char *host, struct err *err);
/* `scip console`: pbeamd starts it with a channel of kind CONSOLE as descriptor 3. Returns the exit status.
 */
int attach_serve(void);

#endif
