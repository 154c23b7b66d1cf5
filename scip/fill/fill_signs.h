/* Shared memory between the scips of a job and the coordinators of its restores. */
#ifndef SCIP_FILL_FILL_SIGNS_H
#define SCIP_FILL_FILL_SIGNS_H

#include <stdatomic.h>
#include <stdbool.h>

#include "base/bell.h"

struct fill_signs {
	struct bell taken; /* rung when a scip has taken over a husk */
	/* If set, processes frozen with ScipFreeze.replaced are killed when the coordinator's connection
	 * ends. One flag for the job ensures that all of them end or none, whenever the coordinator is
	 * killed. */
	_Atomic bool condemned;
	/* Set while a restore changes files. If its coordinator is killed, the keeper puts the files back and
	 * clears this; until then processes frozen with ScipFreeze.replaced stay frozen. */
	_Atomic bool files_change;
};

#endif
