#include "scip/dump/freeze.h"

#include <sys/ptrace.h>

#include "scip/tracee/pending.h"
#include "scip/tracee/procfs.h"
#include "scip/tracee/stops.h"

#ifndef PTRACE_EVENT_STOP
#define PTRACE_EVENT_STOP 128
#endif

/* All are interrupted first: each reaches its stop while the next ones are interrupted. */
void freeze_begin(struct process *process)
{
	pending_sample(process);
	process->frozen = true;
	process->freezing = true;
	process->expected = process->tracees;
	for (struct tracee *t = process->tracees; t; t = t->next)
		if (t->stop == TRACEE_RUNNING && stops_interrupt(t) < 0)
			continue; /* it is ending: its exit status follows */
	for (struct tracee *t = process->tracees; t; t = t->next)
		if (t->stop != TRACEE_RUNNING)
			(void)freeze_hold(t);
}

bool freeze_hold(struct tracee *tracee)
{
	switch (tracee->stop) {
	case TRACEE_SIGNAL_DELIVERY_STOP:
	case TRACEE_GROUP_STOP:
		tracee->frozen = true;
		return true;
	case TRACEE_EVENT_STOP:
		tracee->frozen = tracee->event == PTRACE_EVENT_STOP;
		return tracee->frozen;
	case TRACEE_RUNNING:
	case TRACEE_SECCOMP_STOP:
	case TRACEE_SYSCALL_EXIT_STOP:
	case TRACEE_EXITED:
		break;
	}
	return false;
}

/* A leader that ended before its threads is a zombie: no interrupt stops it, and no wait reports it. */
static bool is_dead_leader(const struct tracee *tracee)
{
	const struct process *process = tracee->process;
	struct procfs_stat stat;

	if (tracee->tid != process->pid || process->ntracees < 2)
		return false;
	return procfs_stat_read(process->pid, tracee->tid, &stat, NULL) == 0 &&
	       (stat.state == 'Z' || stat.state == 'X');
}

bool freeze_settled(const struct process *process)
{
	for (const struct tracee *t = process->tracees; t; t = t->next)
		if (!t->frozen && t->stop != TRACEE_EXITED && !is_dead_leader(t))
			return false;
	return true;
}

void thaw_process(struct process *process)
{
	pending_prepare(process);
	process->freezing = false;
	process->expected = NULL;
	for (struct tracee *t = process->tracees; t; t = t->next) {
		if (!t->frozen)
			continue;
		t->frozen = false;
		if (stops_resume(t, STOPS_CONT) < 0)
			t->stop = TRACEE_RUNNING; /* it has been killed */
	}
	process->frozen = false;
}
