/*
 * Handles the end of a parent on another host. To the kernel the keeper is the process's parent, and the
 * keeper does not end. So when the stub link has reported the end (scip/job/links.h), scip does the
 * kernel's part.
 */
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/log.h"
#include "scip/dump/dump.h"
#include "scip/supervisor/control_request.h"
#include "scip/tracee/procfs.h"

/* The siginfo is the one used for signals from other hosts: no process may send a siginfo of the kernel. */
static void orphan_send_signals(const struct process *process, uint64_t signals, struct vpid from)
{
	siginfo_t info;

	for (int signal = 1; signal <= 64; signal++) {
		if (!(signals & 1ull << (signal - 1)))
			continue;
		memset(&info, 0, sizeof(info));
		info.si_signo = signal;
		info.si_code = SI_QUEUE;
		info.si_pid = from.n;
		info.si_uid = getuid();
		if (syscall(SYS_rt_sigqueueinfo, process->pid, signal, &info) < 0)
			log_warn("vpid %d: send the parent-death signal: %m", process->vpid.n);
	}
}

int orphan_adopted(struct process *process, struct vpid parent, struct err *err)
{
	struct name_process entry;
	struct vpid old;
	uint64_t signals;
	int r = names_process_get(process->names, process->vpid, &entry);

	if (r < 0 || entry.rpid.n != process->pid || !entry.remote_parent || entry.parent.n == parent.n)
		return 0; /* another process, or reported already */
	r = dump_death_signals(process, &signals, err);
	if (r < 0) {
		log_warn("vpid %d: read the parent-death signal: %s", process->vpid.n, err->text);
		err_clear(err);
		signals = 0;
	}
	old = entry.parent;
	entry.parent = parent;
	r = names_process_update(process->names, &entry);
	if (r == 0)
		orphan_send_signals(process, signals, old); /* the handler must find the new parent */
	return r;
}

uint64_t orphan_wants(const Pbeam__Process *saved)
{
	uint64_t signals = 0;

	for (size_t i = 0; i < saved->n_threads; i++) {
		uint32_t signal = saved->threads[i]->pdeath_signal;

		if (signal > 0 && signal <= 64)
			signals |= 1ull << (signal - 1);
	}
	return signals;
}

/* The kernel sends the signal once the fill has requested it; before that it was meant for the stub. */
static void come_back(const struct process *process, const Pbeam__Process *saved)
{
	struct procfs_stat stat;

	if (procfs_stat_read(process->pid, 0, &stat, NULL) == 0 &&
	    names_parent(process->names, (struct rpid){process->pid}, (struct rpid){stat.ppid}).n !=
		    saved->vppid)
		orphan_send_signals(process, orphan_wants(saved), (struct vpid){saved->vppid});
}

void orphan_restored(const struct process *process, const Pbeam__Process *saved)
{
	struct name_process entry;

	if (process->returning) {
		come_back(process, saved);
		return;
	}
	if (names_process_get(process->names, process->vpid, &entry) < 0 || entry.rpid.n != process->pid ||
	    !entry.remote_parent || entry.parent.n == saved->vppid)
		return;
	entry.parent.n = saved->vppid;
	if (names_process_update(process->names, &entry) < 0)
		log_warn("vpid %d: its parent could not be found", process->vpid.n);
}
