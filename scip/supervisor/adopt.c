/*
 * Replaces a child. A frozen process has forked a child for the coordinator (restore_fork.c), and an
 * older child of it has ended meanwhile or must be forgotten. The process must see neither the birth
 * nor the death.
 *
 * The birth does not show: the clone() was made by scip and returned to scip. A death shows in two
 * ways. wait4() would find it, so a thread of the process is made to wait for it. Its SIGCHLD is
 * pending for the process while all threads are stopped (ignored signals of a tracee are queued as
 * well); a thread takes it by rt_sigtimedwait().
 *
 * SIGCHLD is not queued twice. If another child has ended later, its signal was dropped because this
 * one was pending. Then the pending one is replaced by the siginfo that the other would have had
 * (waitid() with WNOWAIT returns it, and a process may queue any siginfo to itself). If one was pending
 * before, the signal of this child was dropped and nothing is taken.
 */
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "scip/supervisor/control_request.h"
#include "scip/tracee/memory.h"
#include "scip/tracee/procfs.h"
#include "scip/tracee/remote.h"

#ifndef PTRACE_PEEKSIGINFO_SHARED
#define PTRACE_PEEKSIGINFO_SHARED 1
#endif

enum { KERNEL_SIGSET = 8 };

/* Memory for the calls in the tracee: one page, mapped for this purpose. */
struct page {
	uint64_t set;
	uint64_t pad;
	struct timespec no_wait;
	siginfo_t info;
};

static bool is_listed(const int32_t *list, size_t n, pid_t pid)
{
	for (size_t i = 0; i < n; i++)
		if (list[i] == pid)
			return true;
	return false;
}

/* True if the pending signal reports the end (or a stop) of one of these children. */
static bool adopt_peek_signal(const struct tracee *tracee, const Pbeam__ScipAdopt *adopt, siginfo_t *info)
{
	struct __ptrace_peeksiginfo_args args = {.flags = PTRACE_PEEKSIGINFO_SHARED, .nr = 1};

	for (; ptrace(PTRACE_PEEKSIGINFO, tracee->tid, &args, info) == 1; args.off++)
		if (info->si_code >= CLD_EXITED && info->si_code <= CLD_CONTINUED &&
		    is_listed(adopt->gone, adopt->n_gone, info->si_pid))
			return true;
	return false;
}

static int adopt_call(struct tracee *tracee, int64_t *ret, struct err *err, int64_t nr,
		      const uint64_t args[6])
{
	int r = remote_call(tracee, ret, err, nr, args);

	return r < 0 ? r : *ret < 0 ? (int)*ret : 0;
}

/* Finds a child that has ended, has not been waited for, and ended no earlier than these. */
static pid_t adopt_find_other(const struct process *process, const Pbeam__ScipAdopt *adopt)
{
	auto_free pid_t *children = NULL;
	struct procfs_stat stat;
	int n = procfs_children(process->pid, &children, NULL);

	for (int i = 0; i < n; i++)
		if (!is_listed(adopt->gone, adopt->n_gone, children[i]) &&
		    !is_listed(adopt->ended, adopt->n_ended, children[i]) &&
		    procfs_stat_read(children[i], 0, &stat, NULL) == 0 && stat.state == 'Z')
			return children[i];
	return 0;
}

static int queue_other(struct tracee *tracee, struct taddr at, const Pbeam__ScipAdopt *adopt, int signal,
		       struct err *err)
{
	uint64_t info = at.a + offsetof(struct page, info);
	pid_t other = adopt_find_other(tracee->process, adopt);
	int64_t ret;
	int r;

	if (!other)
		return 0;
	r = adopt_call(tracee, &ret, err, SYS_waitid,
		       remote_args(P_PID, (uint64_t)other, info, WEXITED | WNOHANG | WNOWAIT | __WALL, 0));
	if (r == 0)
		r = adopt_call(tracee, &ret, err, SYS_rt_sigqueueinfo,
			       remote_args((uint64_t)tracee->process->pid, (uint64_t)signal, info));
	return r == -ECHILD ? 0 : r;
}

static int adopt_take_signal(struct tracee *tracee, struct taddr at, int signal, struct err *err)
{
	struct page page = {.set = 1ull << (signal - 1)};
	int64_t ret;
	int r = memory_write(tracee->process, at, &page, sizeof(page));

	if (r == 0)
		r = adopt_call(tracee, &ret, err, SYS_rt_sigtimedwait,
			       remote_args(at.a, 0, at.a + offsetof(struct page, no_wait), KERNEL_SIGSET));
	return r == -EAGAIN ? 0 : r;
}

static bool has_own(const struct tracee *tracee, int signal)
{
	struct __ptrace_peeksiginfo_args args = {.nr = 1};
	siginfo_t info;

	for (; ptrace(PTRACE_PEEKSIGINFO, tracee->tid, &args, &info) == 1; args.off++)
		if (info.si_signo == signal)
			return true;
	return false;
}

/* Takes their SIGCHLD if one is pending. A thread with its own pending SIGCHLD would lose that instead;
 * then the process's is left, and the program sees one too many. */
static int take_death(struct tracee *tracee, const Pbeam__ScipAdopt *adopt, struct err *err)
{
	siginfo_t info;
	int64_t page, ignored;
	int r;

	if (!adopt_peek_signal(tracee, adopt, &info) || has_own(tracee, info.si_signo))
		return 0;
	r = adopt_call(tracee, &page, err, SYS_mmap,
		       remote_args(0, sizeof(struct page), PROT_READ | PROT_WRITE,
				   MAP_PRIVATE | MAP_ANONYMOUS, (uint64_t)-1, 0));
	if (r < 0)
		return err_wrap(err, r, "make room");
	r = adopt_take_signal(tracee, (struct taddr){(uint64_t)page}, info.si_signo, err);
	if (r == 0)
		r = queue_other(tracee, (struct taddr){(uint64_t)page}, adopt, info.si_signo, err);
	if (adopt_call(tracee, &ignored, NULL, SYS_munmap, remote_args((uint64_t)page, sizeof(struct page))) <
	    0)
		log_debug("process %d: unmap the page of the exchange", tracee->process->pid);
	return r;
}

/* Waits for these children, which have been killed, so that the process forgets them. */
static int forget_children(struct process *process, const Pbeam__ScipAdopt *adopt, struct err *err)
{
	struct tracee *tracee = process_still(process);
	int64_t ret;
	int r = 0;

	if (!tracee)
		return err_set(err, -ESRCH, "vpid %d is ending", process->vpid.n);
	for (size_t i = 0; i < adopt->n_gone && r == 0; i++) {
		r = adopt_call(tracee, &ret, err, SYS_wait4,
			       remote_args((uint64_t)adopt->gone[i], 0, __WALL, 0));
		if (r == -ECHILD)
			r = 0; /* not a child of the process, or the process ignores SIGCHLD */
	}
	return r < 0 ? r : take_death(tracee, adopt, err);
}

static int adopt_child(struct process *process, const struct control_trial *trial,
		       const Pbeam__ScipAdopt *adopt, struct err *err)
{
	struct tracee *tracee = process_still(process);
	int r = 0;

	if (tracee && trial->child && trial->replaces > 0)
		r = adopt_exchange_pidfds(tracee, trial->replaces, trial->child, err);
	if (r == 0)
		r = forget_children(process, adopt, err);
	return r < 0 ? err_wrap(err, r, "let vpid %d forget a child", process->vpid.n) : 0;
}

int control_adopt(struct control_request *request, struct err *err)
{
	const Pbeam__ScipAdopt *adopt = (const void *)request->message;
	int r;

	for (size_t i = 0; i < adopt->n_gone; i++)
		if (adopt->gone[i] <= 1)
			return err_set(err, -EPROTO, "process %d is not a child", adopt->gone[i]);
	r = adopt_child(request->process, &request->connection->trial, adopt, err);
	if (r == 0)
		request->connection->trial.child = 0;
	return r;
}

void adopt_finish(const struct control_trial *trial, struct process *process)
{
	int32_t gone = trial->replaces;
	Pbeam__ScipAdopt adopt = PBEAM__SCIP_ADOPT__INIT;
	struct err err = ERR_INIT;

	adopt.n_gone = gone > 0;
	adopt.gone = &gone;
	if (gone > 0)
		kill(gone, SIGKILL); /* it is waited for */
	if (adopt_child(process, trial, &adopt, &err) < 0)
		log_error("%s", err.text);
}

void adopt_undo(struct control_trial *trial, struct process *process)
{
	struct names *names = process->names;
	struct name_process entry;
	struct err err = ERR_INIT;
	Pbeam__ScipAdopt adopt = PBEAM__SCIP_ADOPT__INIT;
	int32_t child = trial->child;

	adopt.gone = &child;
	adopt.n_gone = 1;
	kill(child, SIGKILL);
	if (forget_children(process, &adopt, &err) < 0)
		log_warn("vpid %d may notice the end of a child that was on trial: %s", process->vpid.n,
			 err.text);
	if (!trial->vpid.n)
		return;
	names_number_release(names, trial->vpid, (struct rpid){child});
	names_process_remove(names, trial->vpid, (struct rpid){child});
	/* The one that it would have replaced exists, or has left its entry. */
	if (trial->replaces <= 0 ||
	    names_process_get_real(names, trial->vpid, (struct rpid){trial->replaces}, &entry) == 0)
		return;
	entry = (struct name_process){.vpid = trial->vpid,
				      .rpid = {trial->replaces},
				      .parent = process->vpid,
				      .keeper = process->keeper,
				      .state = NAME_STATE_DEAD,
				      .diverged = true};
	if (names_number_bind(names, trial->vpid, entry.rpid, process->keeper) < 0 ||
	    (trial->vpid.n != trial->replaces && names_process_add(names, &entry) < 0))
		log_warn("vpid %d: the parent sees the process end under another number", trial->vpid.n);
}
