/* The checkpoints of all hosts. */
#ifndef PBEAMD_SERVICES_LOG_ALL_H
#define PBEAMD_SERVICES_LOG_ALL_H

#include "pbeamd/transport/cluster.h"

/* Collects the checkpoints of a target on all hosts. `done` is called once, after log_all_begin() has
 * returned, with a list that it frees (NULL without memory). */
typedef void (*log_all_fn)(void *arg, Pbeam__CheckpointLog *all);
struct log_all;
must_check struct log_all *log_all_begin(struct cluster *cluster, const Pbeam__Target *target,
					 log_all_fn done, void *arg);
void log_all_cancel(struct log_all *log);

#endif
