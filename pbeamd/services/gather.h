/* The processes of all hosts. */
#ifndef PBEAMD_SERVICES_GATHER_H
#define PBEAMD_SERVICES_GATHER_H

#include "pbeamd/transport/cluster.h"

/* Collects the processes of all hosts. `done` is called once, after gather_begin() has returned, with a list
 * that it frees (NULL without memory). */
typedef void (*gather_fn)(void *arg, Pbeam__ProcessList *list);
struct gather;
must_check struct gather *gather_begin(struct cluster *cluster, gather_fn done, void *arg);
void gather_cancel(struct gather *gather);

#endif
