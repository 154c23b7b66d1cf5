/* The last steps before a restored process runs: lifts the restrictions that would have hindered the fill.
 */
#include <errno.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "scip/fill/fill.h"
#include "scip/tracee/procfs.h"
#include "scip/tracee/regs.h"
#include "scip/tracee/remote.h"
#include "scip/tracee/stops.h"

/* Ends the leader of a process whose other threads run on: it stays a zombie until they have ended. */
static int end_leader(struct process *process, struct err *err)
{
	int r = remote_last_call(process, SYS_exit, err);

	return r < 0 ? err_wrap(err, r, "end the leader of vpid %d", process->vpid.n) : 0;
}

/* Resumed with SIGSTOP pending, the process stops before it has run one instruction of its own. The
 * function returns when the process is in its group-stop, so that an immediate checkpoint finds the process
 * stopped instead of a pending signal. */
static int stop_process(struct process *process, struct err *err)
{
	struct tracee *leader = process_leader(process);
	int r = syscall(SYS_tgkill, process->pid, leader->tid, SIGSTOP) < 0 ? -errno : 0;

	while (r >= 0 && leader->stop != TRACEE_GROUP_STOP && leader->stop != TRACEE_EXITED) {
		r = stops_resume(leader, STOPS_CONT);
		if (r == 0)
			r = stops_wait(process, leader->tid, 0, &leader, NULL);
	}
	if (r >= 0 && leader->stop == TRACEE_EXITED)
		r = -ESRCH;
	return r < 0 ? err_code(err, r, "stop vpid %d", process->vpid.n) : 0;
}

/* Excludes the CPU time that the husk has used from the program's. */
static void go_on_counting(struct process *process, const Pbeam__Process *saved)
{
	struct procfs_stat stat;

	if (saved->n_cpu_times_ns != CPU_TIMES || procfs_stat_read(process->pid, 0, &stat, NULL) < 0)
		return;
	for (int i = 0; i < CPU_TIMES; i++)
		process->cpu_before[i] =
			(int64_t)(saved->cpu_times_ns[i] & INT64_MAX) - (int64_t)stat.cpu_ns[i];
}

int fill_release(struct process *process, const Pbeam__Process *saved, struct err *err)
{
	int r = 0;

	process->dumpable = saved->dumpable == 1 ? 0 : 1 + (int)saved->dumpable;
	if (saved->leader_exited)
		r = end_leader(process, err);
	if (r == 0 && saved->state == PBEAM__PROCESS__STATE__STOPPED)
		r = stop_process(process, err);
	if (r == -ESRCH) { /* other threads run already, and one of them has killed it */
		err_clear(err);
		r = 0;
	}
	if (r < 0)
		return r;
	go_on_counting(process, saved);
	process->held = false;
	process->frozen = false;
	for (struct tracee *tracee = process->tracees; tracee; tracee = tracee->next) {
		tracee->frozen = false;
		if (tracee->stop == TRACEE_RUNNING || tracee->stop == TRACEE_EXITED)
			continue;
		r = stops_resume(tracee, STOPS_CONT);
		if (r < 0 && r != -ESRCH)
			return err_code(err, r, "detach thread %d", tracee->tid);
		tracee->stop = TRACEE_RUNNING;
	}
	return 0;
}
