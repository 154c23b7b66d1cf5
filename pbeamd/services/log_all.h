/* The checkpoints of all hosts. */
#ifndef PBEAMD_SERVICES_LOG_ALL_H
#define PBEAMD_SERVICES_LOG_ALL_H

#include "pbeamd/transport/cluster.h"

/* The checkpoints that all hosts have of what a user names: `done` is called once, later, with a list that is
 * its to free (NULL without memory). */
typedef void (*log_all_fn)(void *arg, Pbeam__CheckpointLog *all);
struct log_all;
must_check struct log_all *log_all_begin(struct cluster *cluster, const Pbeam__Target *target,
					 log_all_fn done, void *arg);
void log_all_cancel(struct log_all *log);

#endif
