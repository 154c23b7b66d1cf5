/*
 * A fork that the coordinator of a restore wants: the process, stopped, makes a clone() call; the child,
 * which has its parent's registers and mask, is handed over, held.
 */
#include <errno.h>
#include <linux/sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>

#include "scip/supervisor/control.h"
#include "scip/supervisor/handoff.h"
#include "scip/tracee/remote.h"

static int wait_taken(const struct seat *seat, struct vpid vpid, struct err *err)
{
	struct name_process entry;

	for (int tries = 0; tries < 20000; tries++) {
		int r = names_process_get(seat->names, vpid, &entry);

		if (r < 0)
			return err_code(err, r, "vpid %d was not taken over", vpid.n);
		if (entry.state != NAME_STATE_BORN)
			return 0;
		nanosleep(&(struct timespec){.tv_nsec = tries < 100 ? 20000 : 1000000}, NULL);
	}
	return err_set(err, -ETIMEDOUT, "no scip took vpid %d", vpid.n);
}

static int name_child(const struct seat *seat, struct vpid *vpid, pid_t child, struct err *err)
{
	struct rpid rpid = {child}, keeper = {seat->keeper};
	int r;

	if (vpid->n)
		r = names_number_bind(seat->names, *vpid, rpid, keeper);
	else
		r = names_number_born(seat->names, rpid, keeper, vpid);
	return r < 0 ? err_code(err, r, "give process %d the number %d", child, vpid->n) : 0;
}

int restore_fork(const struct seat *seat, struct process *process, struct vpid vpid, int exit_signal,
		 bool same_files, struct rpid *rpid, struct err *err)
{
	struct tracee *leader = process_leader(process);
	pid_t child;
	int r;

	r = remote_fork(leader, &child, err, SYS_clone,
			remote_args((uint64_t)exit_signal | (same_files ? CLONE_FILES : 0)));
	if (r < 0)
		return err_wrap(err, r, "fork vpid %d", process->vpid.n);
	r = name_child(seat, &vpid, child, err);
	if (r < 0) {
		kill(child, SIGKILL);
		return r;
	}
	r = handoff_send(seat, process, child, vpid, HANDOFF_HELD | HANDOFF_DIVERGED, process->syscall_insn,
			 err);
	if (r < 0)
		return r;
	rpid->n = child;
	return wait_taken(seat, vpid, err);
}
