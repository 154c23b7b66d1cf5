/* The area of the injected code. For inject.c and inject_area.c only. */
#ifndef SCIP_TRACEE_INJECT_AREA_H
#define SCIP_TRACEE_INJECT_AREA_H

#include "scip/tracee/remote.h"

struct batch {
	struct inject_area *area;
	size_t ncalls;
	size_t data; /* offset in the data part: calls are below, data from here on */
};

struct inject_area {
	struct process *process;
	uint64_t start; /* in the tracee */
	size_t code_size, data_size;
	char *local; /* the data part as mapped in scip */
	struct batch batch;
};

#endif
