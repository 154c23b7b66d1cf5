/*
 * `scip attach`: this terminal becomes the console of a job that runs. `pbeamctl attach` executes it.
 */
#ifndef SCIP_JOB_ATTACH_H
#define SCIP_JOB_ATTACH_H

/* `target` is a vpid or a job's name. Returns the exit status: the program's, or 0 after the detach key. */
int attach_run(const char *target);

#endif
