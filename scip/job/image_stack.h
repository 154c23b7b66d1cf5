/*
 * `scip stack IMAGE`, which `pbeamctl stack IMAGE` executes: the stacks of the processes in an image.
 */
#ifndef SCIP_JOB_IMAGE_STACK_H
#define SCIP_JOB_IMAGE_STACK_H

/* Prints them; returns the exit status. `program` is the command's name for its messages. */
int image_stack_run(const char *program, const char *path);

#endif
