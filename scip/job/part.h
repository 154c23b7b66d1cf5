/*
 * `scip part`: pbeamd starts it with a channel of kind CUT as descriptor 3. It serves requests about images;
 * one to save a part goes, with the channel, to the keeper that has it.
 */
#ifndef SCIP_JOB_PART_H
#define SCIP_JOB_PART_H

/* Returns the exit status. */
int part_run(void);

#endif
