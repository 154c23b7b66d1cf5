/* What the scips of a job and the coordinators of its restores tell each other in shared memory. */
#ifndef SCIP_RESTORE_SIGNS_H
#define SCIP_RESTORE_SIGNS_H

#include <stdatomic.h>
#include <stdbool.h>

#include "base/bell.h"

struct restore_signs {
	struct bell taken; /* rung when a scip has taken a husk over */
	/* What the coordinator has frozen with ScipFreeze.replaced ends when its connection does: all of it
	 * or none, at whatever moment the coordinator is killed. */
	_Atomic bool condemned;
};

#endif
