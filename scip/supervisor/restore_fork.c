/*
 * A fork for the coordinator of a restore: the stopped process makes a clone() call, and the child,
 * with its parent's registers and mask, is handed over, held.
 */
#include <errno.h>
#include <linux/sched.h>
#include <signal.h>
#include <sys/syscall.h>

#include "scip/supervisor/control.h"
#include "scip/supervisor/handoff.h"
#include "scip/tracee/remote.h"

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
	struct tracee *tracee = process_still(process);
	pid_t child;
	int r;

	rpid->n = 0;
	if (!tracee)
		return err_set(err, -EBUSY, "vpid %d is not frozen", process->vpid.n);
	r = remote_fork(tracee, &child, err, SYS_clone,
			remote_args((uint64_t)exit_signal | (same_files ? CLONE_FILES : 0)));
	if (r < 0)
		return err_wrap(err, r, "fork vpid %d", process->vpid.n);
	rpid->n = child;
	r = name_child(seat, &vpid, child, err);
	if (r < 0) {
		kill(child, SIGKILL);
		return r;
	}
	return handoff_send(seat, process, child, vpid, HANDOFF_HELD | HANDOFF_DIVERGED,
			    process->syscall_insn, err);
}
