/* Calls that block, beside the event loop of the process that carries links. */
#ifndef SCIP_JOB_LINK_WORK_H
#define SCIP_JOB_LINK_WORK_H

#include "base/err.h"

struct event_base;

typedef void (*link_work_fn)(void *arg);

/* Once, before any work. -errno. */
must_check int link_work_open(struct event_base *base, struct err *err);
/* Calls `run` in a thread of its own, then `done` in the event loop; both get `arg`, which `done` frees. Only
 * what they find by a number may be used in `done`: it may be gone by then. Work waits while there is no
 * thread to spare. */
void link_work_start(link_work_fn run, link_work_fn done, void *arg);

#endif
