/* `scip restore --check IMAGE`, which `pbeamctl doctor IMAGE` executes. */
#ifndef SCIP_JOB_IMAGE_CHECK_H
#define SCIP_JOB_IMAGE_CHECK_H

#include <stdbool.h>

/* Prints a line for each obstacle to a restore on this host. Returns the exit status: 0 none, 1 some. */
int image_check_run(const char *path, bool force);

#endif
