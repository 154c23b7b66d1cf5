/* Holding a process without a supervisor: every thread seized and stopped, and let go again. For tests and
 * tools. */
#ifndef TESTS_TOOLS_SEIZE_H
#define TESTS_TOOLS_SEIZE_H

#include <stdio.h>
#include <string.h>
#include <sys/ptrace.h>

#include "scip/tracee/procfs.h"
#include "scip/tracee/stops.h"

struct seizing {
	struct process *process;
	unsigned added;
	struct err *err;
};

static inline int seize_thread(int tid, void *arg)
{
	struct seizing *seizing = arg;
	struct tracee *tracee;
	int rc;

	if (process_find_tracee(seizing->process, tid))
		return 0;
	rc = stops_seize(seizing->process, tid, &tracee, seizing->err);
	if (rc < 0)
		return rc;
	tracee->vtid.n = tid;
	tracee->frozen = true;
	seizing->added++;
	return 0;
}

/* Until no new thread appears. */
static inline int seize_process(struct process *process, pid_t pid, struct names *names, struct err *err)
{
	struct seizing seizing = {process, 0, err};
	char dir[64];

	memset(process, 0, sizeof(*process));
	process->pid = process->vpid.n = pid;
	process->names = names;
	snprintf(dir, sizeof(dir), "/proc/%d/task", pid);
	do {
		int rc;

		seizing.added = 0;
		rc = procfs_each_number(dir, seize_thread, &seizing);
		if (rc < 0)
			return rc;
	} while (seizing.added);
	return 0;
}

static inline void release_process(struct process *process)
{
	for (struct tracee *t = process->tracees; t; t = t->next)
		if (ptrace(PTRACE_DETACH, t->tid, 0, 0) < 0)
			perror("detach");
	process_clear(process);
}

#endif
