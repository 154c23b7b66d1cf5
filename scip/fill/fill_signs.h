/* Shared memory between the scips of a job and the coordinators of its restores. */
#ifndef SCIP_FILL_FILL_SIGNS_H
#define SCIP_FILL_FILL_SIGNS_H

#include <stdatomic.h>
#include <stdbool.h>

#include "base/bell.h"

struct fill_signs {
	struct bell taken; /* rung when a scip has taken over a husk */
	/* If set, processes frozen with ScipFreeze.replaced are killed when the coordinator's connection
	 * ends, and those that have been told SCIP_DECIDE run; else the former go on and the latter are
	 * killed. One flag for the job ensures that all of them do the same, whenever the coordinator is
	 * killed: setting it is the commit of a rollback. */
	_Atomic bool condemned;
	/* Set while a restore changes files and numbers. If its coordinator is killed, the keeper settles
	 * them as `condemned` says and clears this; until then these processes stay as they are. */
	_Atomic bool unsettled;
	/* Set from the moment in which a part of a rollback over several hosts reports that it is held, until
	 * its outcome is carried out: the registry alone knows that outcome. If the coordinator is killed
	 * meanwhile both the old and the new processes stay as they are, and the keeper starts another
	 * coordinator, which asks (rebuild_settle()). */
	_Atomic bool voted;
};

#endif
