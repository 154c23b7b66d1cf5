/*
 * How an interrupted call is recognized and continued.
 *
 * At a stop within get_signal() the registers show it: orig_rax is the call, rax one of -512, -513,
 * -514, -516. If they stay as they are, the kernel restarts the call when the tracee is resumed without
 * a handler to run. scip does the rest:
 * - nanosleep, clock_nanosleep (relative), poll and futex (with any timeout) give -516: the kernel
 *   keeps the end of the wait. select, pselect6 and ppoll give -514 and have stored the time left
 *   (probed on 6.18).
 * - Calls that answer -EINTR (the table's ANSWERS_EINTR): rax is set to -514 (ERESTARTNOHAND) during
 *   the stop. The kernel then restarts them, or returns EINTR if a handler runs first, so scip need not
 *   know the dispositions. This also corrects an old artefact of ptrace: an ignored signal (SIGCHLD)
 *   wakes a traced thread and made its epoll_wait fail.
 * - Timeouts of these calls, which would start again: the time left replaces them when the tracee is
 *   resumed. In memory it is stored in a page of scip's, with a slot for each thread in turn: the
 *   kernel reads it at once.
 * - After the first restart of a -516, orig_rax stays 219 (restart_syscall): the call is remembered, or
 *   read from the `mov $nr, %eax` before its instruction.
 * - Transfers with a short count: transfer.c.
 *
 * A call that is made again with other arguments runs with PTRACE_SYSCALL, and the program's own
 * arguments are restored at its exit stop. If a handler is to run instead, the call ends with EINTR: it is
 * not made again, and the program's own arguments are restored before.
 *
 * A relative timeout began when the thread fell asleep. That is se.exec_start in its sched file: the
 * time when it last ran, in the clock of that processor's run queue. The clock is not monotonic time:
 * it leaves out time stolen by the hypervisor, and differs between processors by seconds. Its offset is
 * measured by running on that processor. It must be read before the interrupt wakes the thread; the
 * count of voluntary switches (one more, for the stop) shows whether the thread was awake in between.
 * Where nothing is known the timeout counts from the stop: too long rather than too short.
 */
#include "scip/tracee/pending.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "base/page.h"
#include "scip/tracee/memory.h"
#include "scip/tracee/procfs.h"
#include "scip/tracee/regs.h"
#include "scip/tracee/remote.h"
#include "scip/tracee/remote_arch.h"
#include "scip/tracee/socket_wait.h"
#include "scip/tracee/transfer.h"
#include "syscalls/syscall_table.h"

#ifndef PTRACE_EVENT_STOP
#define PTRACE_EVENT_STOP 128
#endif

enum {
	SYSCALL_INSN_SIZE = 2,
	CODE_RESTARTSYS = -512,
	CODE_RESTARTNOINTR = -513,
	CODE_RESTARTNOHAND = -514,
	CODE_RESTART_BLOCK = -516,
	NSEC_PER_SEC = 1000000000,
	NSEC_PER_MSEC = 1000000,
	SCHED_TEXT_MAX = 65536,
	CPUS_AT_ONCE = 64,
	MEASURE_TRIES = 3,
};

/* ---- when threads fell asleep ---- */

/* Offsets of run queue clocks against monotonic time, measured once for a freeze. */
struct clocks {
	unsigned n;
	int cpu[CPUS_AT_ONCE];
	int64_t offset[CPUS_AT_ONCE];
};

struct sched_numbers {
	uint64_t exec_start, switches;
};

/* "se.exec_start : 3986610.738993": milliseconds with six decimals. */
static bool parse_exec_start(const char *text, uint64_t *ns)
{
	const char *at = strstr(text, "se.exec_start");
	unsigned long long ms, fraction;

	at = at ? strchr(at, ':') : NULL;
	if (!at || sscanf(at + 1, "%llu.%6llu", &ms, &fraction) != 2)
		return false;
	*ns = ms * NSEC_PER_MSEC + fraction;
	return true;
}

static bool read_sched(pid_t pid, pid_t tid, struct sched_numbers *out)
{
	auto_free char *text = NULL;
	const char *at;
	char path[64];

	snprintf(path, sizeof(path), "/proc/%d/task/%d/sched", pid, tid);
	if (io_slurp(AT_FDCWD, path, SCHED_TEXT_MAX, &text, NULL) < 0 ||
	    !parse_exec_start(text, &out->exec_start))
		return false;
	at = strstr(text, "nr_voluntary_switches");
	at = at ? strchr(at, ':') : NULL;
	out->switches = at ? strtoull(at + 1, NULL, 10) : 0;
	return at;
}

/*
 * Runs on that processor for a moment. Reading the thread's processor time updates its exec_start.
 *
 * The time is taken after exec_start: were this thread preempted in between the other way round, exec_start
 * would be updated later than the time, and timeouts would end too early. A preemption now makes the offset
 * too large, and timeouts too long, so it is measured again.
 */
static bool measure_clock(int cpu, int64_t *offset)
{
	struct sched_numbers own;
	struct timespec unused;
	cpu_set_t old, there;
	bool good = false;

	CPU_ZERO(&there);
	CPU_SET(cpu, &there);
	if (sched_getaffinity(0, sizeof(old), &old) < 0 || sched_setaffinity(0, sizeof(there), &there) < 0)
		return false;
	for (int tries = 0; tries < MEASURE_TRIES; tries++) {
		uint64_t before = io_now_ns(CLOCK_MONOTONIC), after;

		clock_gettime(CLOCK_THREAD_CPUTIME_ID, &unused);
		if (!read_sched(getpid(), (pid_t)syscall(SYS_gettid), &own))
			break;
		after = io_now_ns(CLOCK_MONOTONIC);
		if (!good || (int64_t)(after - own.exec_start) < *offset)
			*offset = (int64_t)(after - own.exec_start);
		good = true;
		if (after - before < NSEC_PER_MSEC)
			break;
	}
	(void)!sched_setaffinity(0, sizeof(old), &old);
	return good;
}

static bool clock_of(struct clocks *clocks, int cpu, int64_t *offset)
{
	for (unsigned i = 0; i < clocks->n; i++) {
		if (clocks->cpu[i] == cpu) {
			*offset = clocks->offset[i];
			return true;
		}
	}
	if (cpu < 0 || cpu >= CPU_SETSIZE || !measure_clock(cpu, offset))
		return false;
	if (clocks->n < CPUS_AT_ONCE) {
		clocks->cpu[clocks->n] = cpu;
		clocks->offset[clocks->n++] = *offset;
	}
	return true;
}

/* /proc/PID/task/TID/syscall of a sleeping thread: number and arguments. */
static bool read_call(const struct tracee *tracee, int64_t *number, uint64_t args[6])
{
	char path[64], text[256];
	auto_close int fd = -1;
	unsigned long long v[6];
	long long nr;
	ssize_t n;

	snprintf(path, sizeof(path), "/proc/%d/task/%d/syscall", tracee->process->pid, tracee->tid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	n = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);
	if (n <= 0)
		return false;
	text[n] = 0;
	if (sscanf(text, "%lld %llx %llx %llx %llx %llx %llx", &nr, &v[0], &v[1], &v[2], &v[3], &v[4],
		   &v[5]) != 7)
		return false;
	*number = nr;
	for (int i = 0; i < 6; i++)
		args[i] = v[i];
	return true;
}

/* The timeout that the program has given, in nanoseconds. False: none, or it cannot be read. */
static bool read_timeout(const struct process *process, const struct syscall_timeout *where,
			 const uint64_t args[6], uint64_t *ns)
{
	uint64_t value = args[where->arg];
	struct timespec ts;

	if (syscall_timeout_is_of_socket(where))
		return socket_wait_timeout(process, (int)value, where->unit, ns);
	if (where->unit == TIMEOUT_UNIT_MS) {
		*ns = (uint64_t)(uint32_t)value * NSEC_PER_MSEC;
		return (int32_t)value >= 0;
	}
	if (!value || memory_read(process, (struct taddr){value}, &ts, sizeof(ts)) < 0)
		return false;
	if (ts.tv_sec < 0 || ts.tv_nsec < 0 || ts.tv_nsec >= NSEC_PER_SEC)
		return false;
	/* some programs sleep for ever by the largest number */
	if ((uint64_t)ts.tv_sec > INT64_MAX / NSEC_PER_SEC - 1)
		*ns = INT64_MAX;
	else
		*ns = (uint64_t)ts.tv_sec * NSEC_PER_SEC + (uint64_t)ts.tv_nsec;
	return true;
}

/* True if the call answers -EINTR to PTRACE_INTERRUPT instead of asking to be restarted. */
static bool answers_eintr(const struct user_regs_struct *regs)
{
	const struct syscall_row *row = syscall_row((int64_t)regs->orig_rax);

	return row && row->eintr;
}

static void pending_sample_clocks(struct tracee *tracee, struct clocks *clocks)
{
	struct tracee_pending *p = &tracee->pending;
	const struct syscall_timeout *where;
	struct sched_numbers sched;
	struct procfs_stat stat;
	uint64_t args[6], timeout;
	int64_t number, offset;

	p->sampled_call = -1;
	if (!read_call(tracee, &number, args) || number < 0)
		return;
	where = syscall_timeout(number, args);
	if (!where || (where->left && args[where->left]) ||
	    !read_timeout(tracee->process, where, args, &timeout))
		return;
	if (!read_sched(tracee->process->pid, tracee->tid, &sched) ||
	    procfs_stat_read(tracee->process->pid, tracee->tid, &stat, NULL) < 0 || stat.state != 'S' ||
	    !clock_of(clocks, stat.processor, &offset))
		return;
	p->sampled_call = number;
	p->sampled_timeout = args[where->arg];
	p->sampled_switches = sched.switches;
	p->sampled_ns = io_now_ns(CLOCK_MONOTONIC);
	p->asleep_ns = sched.exec_start + (uint64_t)offset;
	if (p->asleep_ns > p->sampled_ns)
		p->asleep_ns = p->sampled_ns;
}

void pending_sample(struct process *process)
{
	struct clocks clocks = {.n = 0};

	for (struct tracee *t = process->tracees; t; t = t->next)
		if (t->stop == TRACEE_RUNNING)
			pending_sample_clocks(t, &clocks);
}

/* ---- recording interrupted calls ---- */

/* The moment when the call's relative timeout began. */
static uint64_t begun_at(struct tracee *tracee, int64_t number, uint64_t timeout_arg)
{
	struct tracee_pending *p = &tracee->pending;
	struct sched_numbers sched;
	bool same = p->sampled_call == number && p->sampled_timeout == timeout_arg;

	p->sampled_call = -1;
	if (!same)
		return p->stopped_ns;
	if (read_sched(tracee->process->pid, tracee->tid, &sched) &&
	    sched.switches == p->sampled_switches + 1)
		return p->asleep_ns;
	return p->sampled_ns;
}

static uint64_t saturating_add(uint64_t from, uint64_t by)
{
	return from > UINT64_MAX - by ? UINT64_MAX : from + by;
}

/* Computes the end of the noted call's wait. */
static void note_deadline(struct tracee *tracee, const struct user_regs_struct *regs, bool restarted)
{
	struct tracee_pending *p = &tracee->pending;
	const struct syscall_timeout *where;
	uint64_t args[6], ns;

	p->stopped_ns = io_now_ns(CLOCK_MONOTONIC);
	if (p->active) /* known since the first interruption */
		return;
	regs_unpack_args(regs, args);
	where = syscall_timeout(tracee->restart_call, args);
	if (where && where->left && args[where->left]) {
		const struct syscall_timeout left = {.unit = TIMEOUT_UNIT_TIMESPEC, .arg = where->left};

		p->timed = read_timeout(tracee->process, &left, args, &ns);
		p->deadline_ns = p->timed ? saturating_add(p->stopped_ns, ns) : 0;
		return;
	}
	if (restarted && p->timed)
		return;
	p->timed = where && read_timeout(tracee->process, where, args, &ns);
	if (p->timed)
		p->deadline_ns = saturating_add(begun_at(tracee, tracee->restart_call, args[where->arg]), ns);
}

/* The call behind restart_syscall, from the instruction that loaded its number. */
static int64_t decode_call(const struct process *process, uint64_t rip)
{
	unsigned char text[7]; /* b8 imm32 0f 05 */
	int32_t number;

	if (memory_read(process, (struct taddr){rip - sizeof(text)}, text, sizeof(text)) < 0 ||
	    text[0] != 0xb8 || text[5] != 0x0f || text[6] != 0x05)
		return -1;
	memcpy(&number, text + 1, sizeof(number));
	return number;
}

/* True if the tracee is to be resumed with a signal for which the program has a handler. */
static bool runs_handler(const struct tracee *tracee)
{
	char path[64], *text;
	const char *caught;
	uint64_t set = 0;

	if (tracee->stop != TRACEE_SIGNAL_DELIVERY_STOP || tracee->signal <= 0)
		return false;
	snprintf(path, sizeof(path), "/proc/%d/task/%d/status", tracee->process->pid, tracee->tid);
	if (io_slurp(AT_FDCWD, path, SCHED_TEXT_MAX, &text, NULL) < 0)
		return true;
	caught = procfs_field(text, "SigCgt");
	if (caught)
		set = strtoull(caught, NULL, 16);
	free(text);
	return set >> (tracee->signal - 1) & 1;
}

/* Restores the program's own registers for a call that is not continued: it returns the bytes transferred,
 * or was interrupted. */
static void pending_give_up(struct tracee *tracee, struct user_regs_struct *regs)
{
	struct tracee_pending *p = &tracee->pending;

	regs_pack_args(regs, p->args);
	regs->rip = p->rip;
	regs->orig_rax = (uint64_t)p->number;
	if (p->done)
		regs->rax = p->done;
	p->active = false;
}

/* Recognizes a call that was set back to its instruction, by the kernel or by scip, and was stopped before
 * it was made again: rcx still holds the return address of the call before. It becomes an interrupted call
 * again. Its code is that of calls which are always made again: a handler that runs now would not have
 * interrupted it. */
static bool undo_set_back(const struct tracee_pending *p, struct user_regs_struct *regs)
{
	int64_t number = (int64_t)regs->orig_rax, rax = (int64_t)regs->rax;

	if (regs->rcx != regs->rip + SYSCALL_INSN_SIZE)
		return false;
	if (p->active && regs->rcx == p->rip && number == -1)
		regs->orig_rax = regs->rax;
	else if (number < 0 || (rax != number && rax != SYS_restart_syscall))
		return false;
	regs->rip = regs->rcx;
	if (rax == SYS_restart_syscall)
		regs->rax = (uint64_t)(int64_t)CODE_RESTART_BLOCK;
	else
		regs->rax = (uint64_t)(int64_t)(p->active ? CODE_RESTARTNOHAND : CODE_RESTARTNOINTR);
	return true;
}

/* Changes `regs` to those of an interrupted call if they mean one. *changed: the caller must set them. */
static bool pending_recognize(struct tracee *tracee, struct user_regs_struct *regs, bool *changed)
{
	*changed = undo_set_back(&tracee->pending, regs);
	if (*changed)
		return true;
	if ((int64_t)regs->orig_rax < 0)
		return false;
	if ((int64_t)regs->rax == -EINTR && answers_eintr(regs)) {
		regs->rax = (uint64_t)(int64_t)CODE_RESTARTNOHAND;
		*changed = true;
	}
	if (remote_arch_in_restart(regs))
		return true;
	/* SIGPIPE of the transfer itself: the other end closed after a part, and that count is the result. */
	if (tracee->stop == TRACEE_SIGNAL_DELIVERY_STOP && tracee->signal == SIGPIPE)
		return false;
	if (!tracee->pending.active && transfer_begin(tracee, regs)) {
		*changed = true;
		return true;
	}
	return false;
}

void pending_forget(struct tracee *tracee)
{
	tracee->restart_call = -1;
	tracee->pending = (struct tracee_pending){.sampled_call = -1};
}

void pending_note(struct tracee *tracee)
{
	struct tracee_pending *p = &tracee->pending;
	struct user_regs_struct regs;
	bool changed, restarted;

	p->expiring = false;
	if (regs_get(tracee, &regs) < 0)
		return;
	if (!pending_recognize(tracee, &regs, &changed)) {
		tracee->restart_call = -1;
		p->active = p->timed = false;
		return;
	}
	restarted = (int64_t)regs.orig_rax == SYS_restart_syscall ||
		    (changed && (int64_t)regs.rax == CODE_RESTART_BLOCK && !p->active);
	if (p->active)
		tracee->restart_call = p->number;
	else if ((int64_t)regs.orig_rax != SYS_restart_syscall)
		tracee->restart_call = (int64_t)regs.orig_rax;
	else if (tracee->restart_call < 0)
		tracee->restart_call = decode_call(tracee->process, regs.rip);
	note_deadline(tracee, &regs, restarted);
	if (p->active && runs_handler(tracee)) {
		pending_give_up(tracee, &regs);
		changed = true;
	} else if (socket_wait_ended(tracee, &regs)) {
		p->active = p->timed = false;
		tracee->restart_call = -1;
		changed = true;
	}
	if (changed && regs_set(tracee, &regs) < 0)
		tracee->restart_call = -1;
}

/* ---- continuing calls ---- */

static uint64_t time_left(const struct tracee_pending *p, uint64_t now)
{
	return p->deadline_ns > now ? p->deadline_ns - now : 0;
}

/* The slot of a thread. The kernel reads it as soon as the thread runs, so only threads that are resumed
 * at the same moment must not share one. */
static uint64_t timeout_slot(const struct tracee *tracee)
{
	enum { SLOTS = PAGE / sizeof(struct timespec) };
	unsigned number = 0;

	for (const struct tracee *t = tracee->process->tracees; t && t != tracee; t = t->next)
		number++;
	return tracee->process->timeouts.a + number % SLOTS * sizeof(struct timespec);
}

static bool write_left(const struct process *process, uint64_t at, uint64_t left)
{
	struct timespec ts = {.tv_sec = (time_t)(left / 1000000000), .tv_nsec = (long)(left % 1000000000)};

	return memory_write(process, (struct taddr){at}, &ts, sizeof(ts)) == 0;
}

/* Maps the page for timeouts, through a stopped tracee. */
static void map_timeouts(struct tracee *tracee)
{
	const uint64_t args[6] = {0,	      PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
				  UINT64_MAX, 0};
	int64_t ret;

	if (!tracee->process->timeouts.a && remote_call(tracee, &ret, NULL, SYS_mmap, args) == 0 &&
	    (ret > 0 || ret < -4095))
		tracee->process->timeouts.a = (uint64_t)ret;
}

/* Puts the time left into the arguments of a call that is made again. False: the call begins anew. */
static bool replace_timeout(struct tracee *tracee, const struct syscall_timeout *where, uint64_t args[6])
{
	struct process *process = tracee->process;
	uint64_t left = time_left(&tracee->pending, io_now_ns(CLOCK_MONOTONIC));

	if (syscall_timeout_is_of_socket(where)) {
		process->socket_waits = true;
		return true;
	}
	if (where->unit == TIMEOUT_UNIT_MS) {
		left = (left + NSEC_PER_MSEC - 1) / NSEC_PER_MSEC;
		args[where->arg] = left > INT32_MAX ? INT32_MAX : left;
		return true;
	}
	map_timeouts(tracee);
	if (!process->timeouts.a)
		return false;
	args[where->arg] = timeout_slot(tracee);
	return write_left(process, args[where->arg], left);
}

void pending_before_resume(struct tracee *tracee)
{
	struct tracee_pending *p = &tracee->pending;
	const struct syscall_timeout *where;
	struct user_regs_struct regs;
	uint64_t args[6];

	if (tracee->restart_call < 0 || !p->timed || regs_get(tracee, &regs) < 0 ||
	    !remote_arch_in_restart(&regs) || runs_handler(tracee))
		return;
	regs_unpack_args(&regs, args);
	where = syscall_timeout(tracee->restart_call, p->active ? p->args : args);
	if (!where || where->kernel_keeps)
		return;
	if (!p->active) {
		p->number = tracee->restart_call;
		memcpy(p->args, args, sizeof(args));
		p->rip = regs.rip;
		p->done = 0;
	}
	if (!replace_timeout(tracee, where, args))
		return;
	regs_pack_args(&regs, args);
	p->active = regs_set(tracee, &regs) == 0;
}

/* At the exit of a continued call: starts the next piece, or ends it. */
static void take_exit(struct tracee *tracee, struct user_regs_struct *regs)
{
	struct tracee_pending *p = &tracee->pending;
	int64_t ret = (int64_t)regs->rax;

	if (ret > 0 && p->done) {
		p->done += (uint64_t)ret;
		regs->rax = p->done;
		/* a short count: by this stop, or by an end of file, which the next call reports */
		if (transfer_piece(tracee, regs)) {
			regs->rax = regs->orig_rax;
			regs->orig_rax = UINT64_MAX;
			regs->rip = p->rip - SYSCALL_INSN_SIZE;
			return;
		}
	} else if (p->done) {
		regs->rax = p->done;
	}
	regs_pack_args(regs, p->args);
	p->active = p->timed = false;
	tracee->restart_call = -1;
}

/* Resumes to the next stop. If the tracee is gone, its exit is reported later. */
static bool run_on(struct tracee *tracee)
{
	if (tracee->process->freezing) /* this stop has used up the interrupt */
		ptrace(PTRACE_INTERRUPT, tracee->tid, NULL, NULL);
	ptrace(tracee->pending.active ? PTRACE_SYSCALL : PTRACE_CONT, tracee->tid, NULL, NULL);
	return true;
}

/* True if this is not the continued call, which is over: a handler has run that another thread installed
 * after runs_handler() had looked. The next piece of a transfer may be requested by a call of another number
 * (transfer.c). */
static bool is_another_call(const struct tracee_pending *p, const struct __ptrace_syscall_info *info)
{
	return !p->done && (int64_t)info->entry.nr != p->number && info->entry.nr != SYS_restart_syscall;
}

bool pending_syscall_stop(struct tracee *tracee)
{
	struct __ptrace_syscall_info info;
	struct user_regs_struct regs;
	int64_t ret;

	if (ptrace(PTRACE_GET_SYSCALL_INFO, tracee->tid, sizeof(info), &info) < 0 ||
	    regs_get(tracee, &regs) < 0)
		return true;
	if (info.op == PTRACE_SYSCALL_INFO_ENTRY && is_another_call(&tracee->pending, &info)) {
		tracee->pending.active = tracee->pending.timed = false;
		tracee->restart_call = -1;
	}
	if (info.op != PTRACE_SYSCALL_INFO_EXIT)
		return run_on(tracee);
	ret = (int64_t)regs.rax;
	/* Another thread may take the signal that woke this one (an ignored SIGCHLD, which only a traced
	 * process gets): then no stop would follow and the program would see the EINTR. */
	if (ret == -EINTR && answers_eintr(&regs))
		ptrace(PTRACE_INTERRUPT, tracee->tid, NULL, NULL);
	if (ret != -EINTR && (ret > CODE_RESTARTSYS || ret < CODE_RESTART_BLOCK)) {
		take_exit(tracee, &regs);
		if (regs_set(tracee, &regs) < 0)
			return true;
	}
	return tracee->want_exit_stop ? false : run_on(tracee);
}

void pending_prepare(struct process *process)
{
	for (struct tracee *t = process->tracees; t; t = t->next) {
		uint64_t args[6];
		const struct syscall_timeout *where;
		struct user_regs_struct regs;

		if (t->restart_call < 0 || !t->pending.timed || t->stop == TRACEE_RUNNING ||
		    t->stop == TRACEE_EXITED || regs_get(t, &regs) < 0)
			continue;
		regs_unpack_args(&regs, args);
		where = syscall_timeout(t->restart_call, args);
		if (!where || where->kernel_keeps || where->unit != TIMEOUT_UNIT_TIMESPEC)
			continue;
		map_timeouts(t);
		return;
	}
}

/* ---- images ---- */

static int pending_fill_call(Pbeam__PendingCall *call, const uint64_t args[6], const struct tracee *tracee)
{
	const struct tracee_pending *p = &tracee->pending;

	call->args = malloc(6 * sizeof(uint64_t));
	if (!call->args)
		return -ENOMEM;
	memcpy(call->args, args, 6 * sizeof(uint64_t));
	call->n_args = 6;
	call->number = tracee->restart_call;
	call->has_left = p->timed;
	call->left_ns = p->timed ? time_left(p, p->stopped_ns) : 0;
	call->done = p->active ? p->done : 0;
	return 0;
}

int pending_saved_registers(struct tracee *tracee, struct user_regs_struct *regs, Pbeam__PendingCall *call,
			    struct err *err)
{
	const struct tracee_pending *p = &tracee->pending;
	uint64_t args[6];
	int code = regs_get(tracee, regs);

	if (code < 0)
		return err_code(err, code, "read the registers of thread %d", tracee->tid);
	regs_abort_rseq(tracee, regs);
	if (!remote_arch_in_restart(regs))
		return 0;
	if (tracee->restart_call < 0)
		return err_set(err, -ENOTSUP,
			       "thread %d is in a call that was interrupted before and cannot be identified; "
			       "try again",
			       tracee->tid);
	call->restart = (int32_t)regs->rax;
	regs_unpack_args(regs, args);
	if (p->active)
		memcpy(args, p->args, sizeof(args));
	code = pending_fill_call(call, args, tracee);
	if (code < 0)
		return err_code(err, code, "save the call of thread %d", tracee->tid);
	regs_pack_args(regs, args);
	regs->rax = (uint64_t)tracee->restart_call;
	regs->rip -= SYSCALL_INSN_SIZE;
	regs->orig_rax = UINT64_MAX;
	return 0;
}

/* Lets the kernel begin the wait for the time left. *ret: -516, or an immediate result of the call. */
static int arm_wait(struct tracee *tracee, const struct syscall_timeout *where,
		    const Pbeam__PendingCall *call, int64_t *ret, struct err *err)
{
	struct process *process = tracee->process;
	uint64_t args[6];

	memcpy(args, call->args, sizeof(args));
	if (where->unit == TIMEOUT_UNIT_MS) {
		uint64_t ms = (call->left_ns + NSEC_PER_MSEC - 1) / NSEC_PER_MSEC;

		args[where->arg] = ms > INT32_MAX ? INT32_MAX : ms;
	} else {
		map_timeouts(tracee);
		if (!process->timeouts.a || !write_left(process, process->timeouts.a, call->left_ns))
			return err_set(err, -ENOMEM, "no room for a timeout in process %d", process->pid);
		args[where->arg] = process->timeouts.a;
	}
	return remote_call_interrupted(tracee, ret, err, call->number, args);
}

int pending_resume(struct tracee *tracee, const Pbeam__PendingCall *call, struct err *err)
{
	struct tracee_pending *p = &tracee->pending;
	const struct syscall_timeout *where;
	struct user_regs_struct regs;
	int64_t ret;
	int code;

	pending_forget(tracee);
	if (!call || !call->restart || call->n_args != 6)
		return 0;
	code = regs_get(tracee, &regs);
	if (code < 0)
		return err_code(err, code, "read the registers of thread %d", tracee->tid);
	ret = call->restart;
	where = syscall_timeout(call->number, call->args);
	tracee->restart_call = call->number;
	p->number = call->number;
	memcpy(p->args, call->args, sizeof(p->args));
	p->rip = regs.rip + SYSCALL_INSN_SIZE;
	p->done = call->done;
	p->timed = call->has_left && where;
	p->stopped_ns = io_now_ns(CLOCK_MONOTONIC);
	p->deadline_ns = saturating_add(p->stopped_ns, call->left_ns);
	if (ret == CODE_RESTART_BLOCK)
		ret = CODE_RESTARTNOHAND; /* no timeout, or an absolute one */
	if (p->timed && where->kernel_keeps)
		code = arm_wait(tracee, where, call, &ret, err);
	else if (p->timed && where->unit == TIMEOUT_UNIT_TIMESPEC)
		map_timeouts(tracee);
	if (code == -ESRCH)
		return err_wrap(err, code, "continue call %lld of thread %d", (long long)call->number,
				tracee->tid);
	if (code <
	    0) /* forbidden, for example by a filter of the program: the call waits its whole time again */
		ret = CODE_RESTARTNOHAND;
	regs.rip = p->rip;
	regs.orig_rax = (uint64_t)call->number;
	regs.rax = (uint64_t)ret;
	if (p->done)
		p->active = transfer_piece(tracee, &regs);
	if (p->done && !p->active)
		regs.rax = p->done;
	return remote_settle(tracee, &regs, err);
}
