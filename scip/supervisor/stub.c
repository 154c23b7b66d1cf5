#include "scip/supervisor/stub.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "base/log.h"
#include "proto/daemon.pb-c.h"
#include "proto/frame.h"
#include "proto/message.h"
#include "scip/fill/fill.h"
#include "scip/supervisor/control_request.h"
#include "scip/syscall/other_host_group.h"
#include "scip/tracee/memory.h"
#include "scip/tracee/pending.h"
#include "scip/tracee/procfs.h"
#include "scip/tracee/regs.h"
#include "scip/tracee/remote.h"
#include "scip/tracee/stops.h"

enum { SIGNALS = 65, SIGINFO_BYTES = 128, KERNEL_SIGSET = 8, ROOM = 1024, STACK = 64 << 10 };

struct stub {
	bool active;		   /* the process lives on another host */
	bool ends;		   /* the process has ended on its host; the stub ends with the same status */
	int stops;		   /* the stop signal that the stub has sent to itself, 0 none */
	int stopped;		   /* the signal that has stopped the process there, 0: it runs */
	uint16_t pending[SIGNALS]; /* signals that are in the image, by number */
	int32_t parent;		   /* the parent in the image (virtual), 0 unknown */
	uint64_t wants;		   /* the signals that the process gets at that parent's end: bits */
};

int stub_attach(struct process *process)
{
	process->stub = calloc(1, sizeof(*process->stub));
	return process->stub ? 0 : -ENOMEM;
}

void stub_detach(struct process *process)
{
	free(process->stub);
	process->stub = NULL;
}

bool stub_is(const struct process *process)
{
	return process->stub->active;
}

int stub_stop_signal(const struct process *process)
{
	return process->stub->active ? process->stub->stopped : 0;
}

void stub_expect_end(struct process *process)
{
	process->stub->ends = true;
}

void stub_return(struct process *process)
{
	process->held = process->returning = true;
	process->frozen = process->freezing = false;
	process->stub->active = false;
}

/* ---- signals that are in the image are not forwarded again ---- */

static void count_pending(struct process *process, size_t n, Pbeam__SignalInfo *const *pending)
{
	for (size_t i = 0; i < n; i++) {
		int signal = 0;

		if (pending[i]->siginfo.len >= sizeof(signal))
			memcpy(&signal, pending[i]->siginfo.data, sizeof(signal));
		if (signal > 0 && signal < SIGNALS)
			process->stub->pending[signal]++;
	}
}

static int32_t parent_of(const struct process *process)
{
	struct procfs_stat stat;

	if (procfs_stat_read(process->pid, 0, &stat, NULL) < 0)
		return 0;
	return names_parent(process->names, (struct rpid){process->pid}, (struct rpid){stat.ppid}).n;
}

void stub_note_dumped(struct process *process, Pbeam__Process *saved)
{
	const struct tracee *leader = process_leader(process);
	const Pbeam__Thread *first = saved->n_threads ? saved->threads[0] : NULL;
	/* A signal that was about to be delivered is in no queue any more. */
	bool held = leader && leader->stop == TRACEE_SIGNAL_DELIVERY_STOP && leader->signal;
	int32_t parent = parent_of(process);

	memset(process->stub->pending, 0, sizeof(process->stub->pending));
	count_pending(process, saved->n_pending, saved->pending);
	if (first && first->n_pending)
		count_pending(process, first->n_pending - held, first->pending + held);
	if (parent)
		saved->vppid = parent;
	process->stub->parent = saved->vppid;
	process->stub->wants = orphan_wants(saved);
}

/* The parent has ended since: the signals for that are not forwarded, because the other host sends them. */
static void note_orphaned(struct process *process)
{
	int32_t parent = parent_of(process);

	if (!parent || !process->stub->parent || parent == process->stub->parent)
		return;
	for (int signal = 1; signal < SIGNALS; signal++)
		if (process->stub->wants & 1ull << (signal - 1))
			process->stub->pending[signal]++;
}

/* Writes to unused memory of the new program, below its stack. */
static int stub_write_scratch(struct tracee *leader, const void *data, size_t len, uint64_t *at)
{
	struct user_regs_struct regs;
	int r = regs_get(leader, &regs);

	if (r < 0)
		return r;
	*at = (regs.rsp - ROOM) & ~63ull;
	return memory_write(leader->process, (struct taddr){*at}, data, len);
}

static int take_signals(struct tracee *leader, struct err *err)
{
	struct process *process = leader->process;

	for (int signal = 1; signal < SIGNALS; signal++) {
		struct {
			uint64_t set;
			struct timespec now;
		} args = {.set = 1ull << (signal - 1)};
		uint64_t at;
		int64_t ret = 0;

		for (; process->stub->pending[signal] && ret >= 0; process->stub->pending[signal]--) {
			int r = stub_write_scratch(leader, &args, sizeof(args), &at);

			if (r == 0)
				r = remote_call(
					leader, &ret, err, SYS_rt_sigtimedwait,
					remote_args(at, 0, at + offsetof(typeof(args), now), KERNEL_SIGSET));
			if (r < 0)
				return r;
		}
	}
	return 0;
}

/* ---- making the stub ---- */

static int end_thread(const struct seat *seat, struct tracee *thread, struct err *err)
{
	struct process *process = thread->process;
	struct tracee *seen;
	int r = remote_aim(thread, SYS_exit, NULL);

	if (r == 0 && ptrace(PTRACE_CONT, thread->tid, 0, 0) < 0)
		r = -errno;
	while (r >= 0 && thread->stop != TRACEE_EXITED) {
		thread->stop = TRACEE_RUNNING;
		r = stops_wait(process, thread->tid, 0, &seen, NULL);
		if (r > 0 && thread->stop != TRACEE_EXITED && ptrace(PTRACE_CONT, thread->tid, 0, 0) < 0)
			r = -errno;
	}
	if (r < 0 && r != -ECHILD && r != -ESRCH)
		return err_code(err, r, "end thread %d", thread->tid);
	supervisor_drop_thread(seat, thread);
	return 0;
}

static int end_threads(const struct seat *seat, struct process *process, struct err *err)
{
	struct tracee *leader = process_leader(process), *next;
	int64_t ret;
	int r;

	if (!leader || leader->stop == TRACEE_EXITED || leader->stop == TRACEE_RUNNING)
		return err_set(err, -ENOTSUP, "its first thread has ended before the others");
	r = remote_call(leader, &ret, err, SYS_getpid, remote_args(0));
	for (struct tracee *t = process->tracees; t && r == 0; t = next) {
		next = t->next;
		if (t != leader)
			r = end_thread(seat, t, err);
	}
	return r;
}

/* Interval timers outlive an execve. */
static int stop_timers(struct tracee *leader, struct err *err)
{
	const struct itimerval never = {0};
	uint64_t at;
	int64_t ret;
	int r = stub_write_scratch(leader, &never, sizeof(never), &at);

	for (uint64_t which = ITIMER_REAL; which <= ITIMER_PROF && r == 0; which++)
		r = remote_call(leader, &ret, err, SYS_setitimer, remote_args(which, at, 0));
	return r;
}

/* A process half filled by a failed restore has no stack at its stack pointer. */
static int provide_stack(struct tracee *leader, struct err *err)
{
	struct user_regs_struct regs;
	int64_t at;
	int r = remote_call(
		leader, &at, err, SYS_mmap,
		remote_args(0, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, ~0ull, 0));

	if (r == 0)
		r = regs_get(leader, &regs);
	if (r < 0)
		return r;
	regs.rsp = (uint64_t)at + STACK - 4096;
	return regs_set(leader, &regs);
}

static int stub_empty_process(struct process *process, const char *comm, struct err *err)
{
	struct tracee *leader = process_leader(process);
	char path[PATH_MAX], root[] = "/";
	uint64_t at;
	int64_t ret;
	int r;

	r = provide_stack(leader, err);
	if (r == 0)
		r = stop_timers(leader, err);
	if (r == 0 && io_readlink(AT_FDCWD, "/proc/self/exe", path, sizeof(path)) < 0)
		r = err_set(err, -ENOENT, "scip's own file is gone");
	if (r == 0)
		r = fill_exec(process, path, err);
	if (r < 0)
		return r;
	inject_forget(process);
	r = remote_call(leader, &ret, err, SYS_close_range, remote_args(0, ~0u, 0));
	if (r == 0)
		r = remote_call(leader, &ret, err, SYS_prctl,
				remote_args(PR_SET_PDEATHSIG, PROCESS_STUB_ORPHANED));
	if (r == 0)
		note_orphaned(process);
	if (r == 0)
		r = stub_write_scratch(leader, root, sizeof(root), &at);
	if (r == 0)
		r = remote_call(leader, &ret, err, SYS_chdir, remote_args(at));
	if (r == 0 && comm)
		r = stub_write_scratch(leader, comm, strnlen(comm, 15) + 1, &at);
	if (r == 0 && comm)
		r = remote_call(leader, &ret, err, SYS_prctl, remote_args(PR_SET_NAME, at));
	return r == 0 ? take_signals(leader, err) : r;
}

static int stub_set_mask(pid_t tid, uint64_t mask)
{
	return ptrace((enum __ptrace_request)PTRACE_SETSIGMASK, tid, (void *)KERNEL_SIGSET, &mask) < 0
		       ? -errno
		       : 0;
}

/* Enters a pause() that ends only with the process. */
static int stub_park(struct process *process, struct err *err)
{
	struct tracee *leader = process_leader(process);
	int r = remote_last_call(process, SYS_pause, err);

	if (r < 0)
		return err_wrap(err, r, "park the stub");
	r = stub_set_mask(leader->tid, 0);
	leader->signal = leader->stop == TRACEE_SIGNAL_DELIVERY_STOP ? 0 : leader->signal;
	if (r == 0)
		r = stops_resume(leader, STOPS_CONT);
	return r < 0 ? err_code(err, r, "park the stub") : 0;
}

static int make_empty(const struct seat *seat, struct process *process, const char *comm, struct err *err)
{
	int r = end_threads(seat, process, err);

	if (r == 0)
		r = stub_empty_process(process, comm, err);
	return r < 0 ? err_wrap(err, r, "vpid %d", process->vpid.n) : 0;
}

int stub_empty(const struct seat *seat, struct process *process, const Pbeam__Process *saved, struct err *err)
{
	auto_free char *comm = NULL;

	if (saved->n_threads && saved->threads[0]->comm.len)
		comm = message_dup_text(&saved->threads[0]->comm);
	memset(process->stub->pending, 0, sizeof(process->stub->pending));
	process->stub->parent = 0;
	return make_empty(seat, process, comm, err);
}

int stub_begin(struct process *process, int stopped, struct err *err)
{
	struct tracee *leader = process_leader(process);
	int r;

	leader->frozen = false;
	leader->call = -1;
	pending_forget(leader); /* an interrupted call continues where the process is */
	process->freezing = process->frozen = process->held = false;
	process->expected = NULL;
	process->stub->active = true;
	process->stub->ends = process->returning = false;
	process->stub->stops = process->stub->stopped = 0;
	process->stub->parent = 0;
	r = stub_park(process, err);
	return r == 0 && stopped ? stub_stop(process, stopped, err) : r;
}

/* The children have migrated too, as processes or zombies: when the process returns, its wait must not find
 * their remains here. */
static int reap_children(struct process *process, struct err *err)
{
	int64_t pid = 1;
	int r = 0;

	while (r == 0 && pid > 0) {
		r = remote_call(process_leader(process), &pid, err, SYS_wait4,
				remote_args(~0ull, 0, WNOHANG | __WALL, 0));
		if (r == 0 && pid > 0) {
			struct rpid rpid = {(int32_t)pid};

			names_process_waited(process->names, names_virtual(process->names, rpid), rpid);
		}
	}
	return r;
}

int stub_make(const struct seat *seat, struct process *process, struct err *err)
{
	auto_free char *comm = NULL;
	char path[PATH_MAX];
	int r = process->returning ? 0 : reap_children(process, err);

	if (r < 0)
		return r;
	snprintf(path, sizeof(path), "/proc/%d/comm", process->pid);
	(void)!io_slurp(AT_FDCWD, path, 64, &comm, NULL);
	r = make_empty(seat, process, comm, err);
	return r < 0 ? r : stub_begin(process, 0, err);
}

/* ---- the stub's events ---- */

/* Sends a message to the keeper, which forwards it, and waits for no reply. */
static int tell_keeper(const struct seat *seat, uint32_t type, const ProtobufCMessage *message,
		       struct err *err)
{
	auto_close int sock = frame_connect_to("job", seat->keeper, err);

	return sock < 0 ? sock : frame_send(sock, type, message, NULL, 0, err);
}

static void pass_on(const struct seat *seat, struct process *process, int signal, const siginfo_t *info)
{
	Pbeam__RemoteSignal message = PBEAM__REMOTE_SIGNAL__INIT;
	struct err err = ERR_INIT;

	message.vpid = process->vpid.n;
	message.signal = signal;
	message.stub = process->pid;
	if (info) {
		message.siginfo.data = (uint8_t *)(uintptr_t)info;
		message.siginfo.len = SIGINFO_BYTES;
		if (info->si_code <= 0)
			message.from = names_virtual(seat->names, (struct rpid){info->si_pid}).n;
	}
	if (tell_keeper(seat, PBEAM__DAEMON_REQUEST__DAEMON_SIGNAL, &message.base, &err) < 0)
		log_warn("vpid %d: signal %d is lost on the way to its host: %s", process->vpid.n, signal,
			 err.text);
}

/* The parent has ended, or the thread of it that made the stub; the other host looks up the new parent. */
static void tell_orphaned(const struct seat *seat, const struct process *process)
{
	Pbeam__Target message = PBEAM__TARGET__INIT;
	struct err err = ERR_INIT;

	message.vpid = process->vpid.n;
	if (tell_keeper(seat, PBEAM__DAEMON_REQUEST__DAEMON_ORPHAN, &message.base, &err) < 0)
		log_warn("vpid %d: report the end of its parent to its host: %s", process->vpid.n, err.text);
}

/* True for signals that a terminal sends to its group. The console of each host reports the window size. */
static bool is_of_terminal(int signal, const siginfo_t *info)
{
	static const int signals[] = {SIGINT, SIGQUIT, SIGTSTP, SIGTTIN, SIGTTOU, SIGHUP, SIGCONT};

	for (size_t i = 0; i < sizeof(signals) / sizeof(signals[0]); i++)
		if (signals[i] == signal)
			return info->si_code == SI_KERNEL;
	return false;
}

/* The kernel has sent the signal to the members of the group on this host. One of the stubs forwards it to
 * members on other hosts that have no stub here. */
static void tell_group(const struct process *process, int signal)
{
	int32_t group = names_virtual(process->names, (struct rpid){getpgid(process->pid)}).n;
	auto_free int32_t *stubs = NULL;
	int n = group > 0 ? other_host_stubs(process->names, group, &stubs) : 0;

	for (int i = 0; i < n; i++)
		if (stubs[i] < process->vpid.n)
			return;
	if (n > 0 && other_host_members(process, group, "", signal, stubs, (size_t)n, NULL) < 0)
		log_debug("vpid %d: signal %d reached no other member of its group", process->vpid.n, signal);
}

/* True for a stop that stub_stop() has caused, or its end. */
static bool stub_owns_signal(struct process *process, int signal)
{
	if (!process->stub->stops || signal != process->stub->stops)
		return false;
	process->stub->stops = 0;
	return true;
}

void stub_event(const struct seat *seat, struct tracee *tracee, int status)
{
	struct process *process = tracee->process;
	siginfo_t info;

	if (tracee->stop == TRACEE_EXITED) {
		if (!process->stub->ends && WIFSIGNALED(status))
			pass_on(seat, process, WTERMSIG(status), NULL);
		return;
	}
	if (tracee->stop != TRACEE_SIGNAL_DELIVERY_STOP || process->held)
		return;
	if (stub_owns_signal(process, tracee->signal)) {
		if (tracee->signal == SIGCONT)
			tracee->signal = 0;
		return; /* a stop signal is delivered: the parent sees the stop */
	}
	memset(&info, 0, sizeof(info));
	if (ptrace(PTRACE_GETSIGINFO, tracee->tid, 0, &info) < 0)
		pass_on(seat, process, tracee->signal, NULL);
	else if (tracee->signal == PROCESS_STUB_ORPHANED && info.si_code == SI_USER)
		tell_orphaned(seat, process);
	else if (tracee->signal != SIGCHLD ||
		 info.si_code <= 0) /* its children end because of the migration */
		pass_on(seat, process, tracee->signal, &info);
	if (is_of_terminal(tracee->signal, &info))
		tell_group(process, tracee->signal);
	tracee->signal = 0;
}

int stub_stop(struct process *process, int signal, struct err *err)
{
	if (!stub_is(process))
		return err_set(err, -EINVAL, "vpid %d is on this host", process->vpid.n);
	process->stub->stops = signal;
	process->stub->stopped = signal == SIGCONT ? 0 : signal;
	/* The kernel does not hold SIGSTOP back in an orphaned group, where it discards the other stop
	 * signals. */
	if (syscall(SYS_tgkill, process->pid, process->pid, signal) < 0)
		return err_sys(err, "stop the stub of vpid %d", process->vpid.n);
	return 0;
}
