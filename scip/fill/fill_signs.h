/* Shared memory between the scips of a job and the coordinators of its restores. */
#ifndef SCIP_FILL_FILL_SIGNS_H
#define SCIP_FILL_FILL_SIGNS_H

#include <stdatomic.h>
#include <stdbool.h>

#include "base/bell.h"

struct fill_signs {
	struct bell taken; /* rung when a scip has taken over a husk */
	/* Processes frozen with ScipFreeze.replaced end when the coordinator's connection does, if this is
	 * set: all of them or none, at whatever moment the coordinator is killed. */
	_Atomic bool condemned;
};

#endif
