#include "scip/tracee/process.h"

#include <errno.h>
#include <stdlib.h>

static unsigned bucket_of(pid_t tid)
{
	return (unsigned)tid % PROCESS_BUCKETS;
}

struct tracee *process_find_tracee(const struct process *process, pid_t tid)
{
	for (struct tracee *t = process->buckets[bucket_of(tid)]; t; t = t->bucket)
		if (t->tid == tid)
			return t;
	return NULL;
}

int process_add_tracee(struct process *process, pid_t tid, struct tracee **out)
{
	struct tracee *t = process_find_tracee(process, tid);
	struct tracee **at = &process->tracees;

	if (!t) {
		t = calloc(1, sizeof(*t));
		if (!t)
			return -ENOMEM;
		t->process = process;
		t->tid = tid;
		t->call = -1;
		t->restart_call = -1;
		t->pending.sampled_call = -1;
		/* The leader is first and the newest thread second: a thousand threads are added without
		 * walking the list to its end. */
		if (tid != process->pid && *at && (*at)->tid == process->pid)
			at = &(*at)->next;
		t->next = *at;
		*at = t;
		t->bucket = process->buckets[bucket_of(tid)];
		process->buckets[bucket_of(tid)] = t;
		process->ntracees++;
	}
	*out = t;
	return 0;
}

void process_remove_tracee(struct process *process, struct tracee *tracee)
{
	struct tracee **at;

	for (at = &process->buckets[bucket_of(tracee->tid)]; *at && *at != tracee; at = &(*at)->bucket)
		;
	if (*at)
		*at = tracee->bucket;
	for (at = &process->tracees; *at && *at != tracee; at = &(*at)->next)
		;
	if (!*at)
		return;
	*at = tracee->next;
	if (process->expected == tracee)
		process->expected = tracee->next;
	process->ntracees--;
	free(tracee);
}

struct tracee *process_leader(struct process *process)
{
	return process_find_tracee(process, process->pid);
}

struct tracee *process_still(struct process *process)
{
	for (struct tracee *t = process->tracees; t; t = t->next)
		if (process->held ? t->stop != TRACEE_RUNNING && t->stop != TRACEE_EXITED : t->frozen)
			return t;
	return NULL;
}

void process_clear(struct process *process)
{
	while (process->tracees)
		process_remove_tracee(process, process->tracees);
	free(process->newborn);
	process->newborn = NULL;
	process->nnewborn = 0;
	process->syscall_insn.a = 0;
	process->scratch.a = 0;
	process->timeouts.a = 0;
}
