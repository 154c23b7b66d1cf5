/* Drops the area without the tracee: apart from inject.c, because a remote execve needs it too. */
#include "scip/tracee/inject_area.h"

#include <stdlib.h>
#include <sys/mman.h>

void inject_forget(struct process *process)
{
	struct inject_area *area = process->area;

	if (!area)
		return;
	munmap(area->local, area->data_size);
	free(area);
	process->area = NULL;
}
