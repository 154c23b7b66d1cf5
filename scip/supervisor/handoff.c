/*
 * Hands a process from one scip to another. Neither the process nor its parent notices.
 *
 * ptrace(2) has no hand-over: a tracee must be detached and seized again, and it runs in between. So the
 * process is parked: all signals are blocked, and it returns to the `syscall` instruction that forked it,
 * with SYS_pause in rax. Nothing is written to its memory (which after vfork is its parent's). No signal is
 * used: the parent's wait would report a SIGSTOP.
 *
 *   old scip, child at its first stop              new scip
 *   1. read registers and mask                     1. SEIZE, INTERRUPT, wait
 *   2. block all signals                           2. set registers and mask
 *   3. rip -= 2, rax = SYS_pause, orig_rax = -1    3. CONT (LISTEN if a stop signal came in between)
 *   4. DETACH
 *   5. send {pid, registers, mask}
 *
 * Only SIGKILL and SIGSTOP reach the child in between. SIGSTOP stops it; SEIZE then reports the group stop,
 * which is kept. Other signals stay pending until the mask is restored.
 *
 * An ordinary user cannot seize a process that is not dumpable (PR_SET_DUMPABLE 0, or an unreadable program
 * file). The old scip, still attached, has it call prctl() to become dumpable, and the new one restores the
 * old value. Under Yama scope 1 the child must also name its future tracer: the keeper, the ancestor of all
 * scips.
 *
 * A process with seccomp filters of its own may be forbidden to call pause(), or any other call. It waits
 * in a jump to itself: two bytes, written to the unused end of its vdso's last page (the kernel lets a
 * tracer write there, as for breakpoints, and copies the page).
 *
 * A reader of the process's registers in between would see a pause(). Its entry says BORN, so there is
 * none.
 */
#include "scip/supervisor/handoff.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/io.h"
#include "base/log.h"
#include "namespace/record.h"
#include "scip/tracee/memory.h"
#include "scip/tracee/procfs.h"
#include "scip/tracee/regs.h"
#include "scip/tracee/stops.h"

/* Length of the `syscall` instruction. */
enum { SYSCALL_INSN_LEN = 2 };
/* Code segment of 64-bit programs. */
enum { USER_CS_64 = 0x33 };

static long handoff_set_mask(pid_t tid, uint64_t mask)
{
	return ptrace((enum __ptrace_request)PTRACE_SETSIGMASK, tid, sizeof(mask), &mask);
}

/* Yama's ptrace_scope, 0 without Yama. Read once: a change applies to new jobs. */
static int yama_scope(void)
{
	static int scope = -1;
	char *text;

	if (scope >= 0)
		return scope;
	scope = 0;
	if (io_slurp(AT_FDCWD, "/proc/sys/kernel/yama/ptrace_scope", 64, &text, NULL) == 0) {
		scope = atoi(text);
		free(text);
	}
	return scope;
}

/* Makes one call in a stopped tracee by its registers alone: not even the tracer can read the memory of a
 * process that is not dumpable, so remote_call() fails there. All its signals are blocked; a SIGSTOP that
 * arrives is sent again. The registers are not restored. */
static int call_by_registers(pid_t tid, uint64_t insn, const uint64_t call[3], int64_t *ret, struct err *err)
{
	struct user_regs_struct regs;
	int status, entered = 0, stopped = 0;

	if (ptrace(PTRACE_GETREGS, tid, 0, &regs) < 0)
		return err_sys(err, "read the registers of process %d", tid);
	regs.rip = insn;
	regs.rax = call[0];
	regs.orig_rax = ~0ull;
	regs.rdi = call[1];
	regs.rsi = call[2];
	if (ptrace(PTRACE_SETREGS, tid, 0, &regs) < 0)
		return err_sys(err, "set the registers of process %d", tid);
	while (entered < 2) {
		if (ptrace(PTRACE_SYSCALL, tid, 0, 0) < 0 || waitpid(tid, &status, __WALL) < 0)
			return err_sys(err, "have process %d make a call", tid);
		if (!WIFSTOPPED(status))
			return err_set(err, -ESRCH, "process %d has ended", tid);
		if (WSTOPSIG(status) == (SIGTRAP | 0x80))
			entered++;
		else if (status >> 16 == 0 && WSTOPSIG(status) == SIGSTOP)
			stopped = 1;
	}
	if (ptrace(PTRACE_GETREGS, tid, 0, &regs) < 0)
		return err_sys(err, "read the registers of process %d", tid);
	*ret = (int64_t)regs.rax;
	if (stopped)
		kill(tid, SIGSTOP);
	return 0;
}

/* Makes the calls that permit the next scip to seize the child, which is stopped, attached, and has its
 * signals blocked. */
static int handoff_prepare(const struct seat *seat, pid_t child, struct handoff *handoff, bool dumpable,
			   struct err *err)
{
	uint64_t get[3] = {SYS_prctl, PR_GET_DUMPABLE}, set[3] = {SYS_prctl, PR_SET_DUMPABLE, 1},
		 name[3] = {SYS_prctl, PR_SET_PTRACER, (uint64_t)seat->keeper};
	int64_t ret;
	int r = 0;

	if (!dumpable) {
		r = call_by_registers(child, handoff->parking, get, &ret, err);
		handoff->dumpable = (int32_t)ret;
		handoff->flags |= HANDOFF_DUMPABLE;
		if (r == 0)
			r = call_by_registers(child, handoff->parking, set, &ret, err);
	}
	if (r == 0 && yama_scope() == 1)
		r = call_by_registers(child, handoff->parking, name, &ret, err);
	return r;
}

/* True if this scip could attach to the process if it were detached. get_robust_list(2) makes the same
 * check as PTRACE_SEIZE and hardly anything else. */
static bool is_dumpable(pid_t child)
{
	void *head;
	size_t len;

	return syscall(SYS_get_robust_list, child, &head, &len) == 0 || errno != EPERM;
}

/* jmp . */
static const uint8_t spin_insn[] = {0xeb, 0xfe};

/* The instruction at which a filtered process waits; written if it is not there yet. */
static int make_spin(const struct handoff *handoff, struct taddr *spin, struct err *err)
{
	struct process process = {.pid = handoff->rpid};
	struct procfs_maps maps;
	uint8_t tail[sizeof(spin_insn)] = {1};
	int r = procfs_maps_read(process.pid, false, &maps, err);

	if (r < 0)
		return r;
	spin->a = 0;
	for (size_t i = 0; i < maps.n; i++)
		if (!strcmp(maps.v[i].name, "[vdso]"))
			spin->a = maps.v[i].end - sizeof(spin_insn);
	procfs_maps_free(&maps);
	r = spin->a ? memory_read(&process, *spin, tail, sizeof(tail)) : -ENOENT;
	if (r == 0 && !memcmp(tail, spin_insn, sizeof(tail)))
		return 0;
	if (r == 0 && (tail[0] || tail[1]))
		r = -EBUSY;
	if (r == 0)
		r = memory_write_force(&process, *spin, spin_insn, sizeof(spin_insn));
	return r < 0 ? err_code(err, r, "find a place in its vdso where new process %d can wait", process.pid)
		     : 0;
}

static int handoff_park(const struct seat *seat, pid_t child, struct handoff *handoff, struct taddr parking,
			struct err *err)
{
	struct user_regs_struct *regs = &handoff->regs, parked;
	bool dumpable;

	if (ptrace(PTRACE_GETREGS, child, 0, regs) < 0 ||
	    ptrace((enum __ptrace_request)PTRACE_GETSIGMASK, child, sizeof(handoff->sigmask),
		   &handoff->sigmask) < 0)
		return err_sys(err, "read the registers of new process %d", child);
	if (regs->cs != USER_CS_64)
		return err_set(err, -ENOTSUP, "new process %d runs 32-bit code, which is not supported",
			       child);
	if (!parking.a)
		parking.a = regs->rip - SYSCALL_INSN_LEN;
	handoff->parking = parking.a;
	if (handoff_set_mask(child, ~0ull) < 0)
		return err_sys(err, "block the signals of new process %d", child);
	dumpable = is_dumpable(child);
	if (!dumpable || yama_scope() == 1) {
		int r = handoff_prepare(seat, child, handoff, dumpable, err);

		if (r < 0)
			return r;
	}
	if (handoff->flags & HANDOFF_FILTERS) {
		int r = make_spin(handoff, &parking, err);

		if (r < 0)
			return r;
	}
	parked = *regs;
	parked.rip = parking.a;
	parked.rax = SYS_pause;
	parked.orig_rax = ~0ull;
	if (ptrace(PTRACE_SETREGS, child, 0, &parked) < 0 || ptrace(PTRACE_DETACH, child, 0, 0) < 0)
		return err_sys(err, "park new process %d", child);
	return 0;
}

static int enter_name(const struct seat *seat, const struct process *parent, const struct handoff *handoff)
{
	struct name_process entry = {
		.vpid = {handoff->vpid},
		.rpid = {handoff->rpid},
		.parent = parent->vpid,
		.scip = {seat->scip}, /* until the next scip has it */
		.keeper = {seat->keeper},
		.start_ns = io_now_ns(CLOCK_REALTIME),
		.state = NAME_STATE_BORN,
		.diverged = (handoff->flags & HANDOFF_DIVERGED) != 0,
	};
	struct name_process old;
	int r = names_process_add(seat->names, &entry);

	/* Removes an entry of this number whose process is gone: its scip has reaped it and not yet
	 * removed the entry. */
	if (r == -EEXIST && names_process_get(seat->names, entry.vpid, &old) == 0 &&
	    old.rpid.n == handoff->rpid) {
		names_process_remove(seat->names, entry.vpid, old.rpid);
		r = names_process_add(seat->names, &entry);
	}
	return r;
}

static void handoff_abandon(const struct seat *seat, const struct handoff *handoff)
{
	int status;

	kill(handoff->rpid, SIGKILL);
	(void)waitpid(handoff->rpid, &status,
		      __WALL); /* only while it is attached here: the parent then sees the end */
	names_process_remove(seat->names, (struct vpid){handoff->vpid}, (struct rpid){handoff->rpid});
	names_number_release(seat->names, (struct vpid){handoff->vpid}, (struct rpid){handoff->rpid});
	seat_report_end(seat);
}

int handoff_send(const struct seat *seat, const struct process *parent, pid_t child, struct vpid vpid,
		 uint32_t flags, struct taddr parking, struct err *err)
{
	struct handoff handoff = {
		.rpid = child,
		.vpid = vpid.n,
		.keeper = seat->keeper,
		.flags = flags | HANDOFF_FORKED | (parent->filters ? HANDOFF_FILTERS : 0),
		.asked_dumpable = parent->dumpable,
		.coordinator = atomic_load(&seat->shared->coordinator),
	};
	int r;

	if (!(flags & HANDOFF_SHARES_MEMORY)) {
		handoff.scratch = parent->scratch.a;
		handoff.timeouts = parent->timeouts.a;
	}
	r = enter_name(seat, parent, &handoff);
	if (r < 0)
		err_code(err, r, "enter vpid %d in the name table", vpid.n);
	else
		r = handoff_park(seat, child, &handoff, parking, err);
	if (r == 0) {
		r = handoff_message_send(seat->give, &handoff);
		if (r < 0)
			err_code(err, r, "hand over vpid %d", vpid.n);
	}
	if (r < 0) {
		handoff_abandon(seat, &handoff);
		return r;
	}
	if (atomic_fetch_sub(&seat->shared->idle, 1) <= (int32_t)seat->shared->low &&
	    write(seat->wake, &(uint64_t){1}, sizeof(uint64_t)) < 0)
		log_warn("wake the keeper: %s", strerror(errno));
	return 0;
}

/* The keeper's child may have been seized on its way to pause(): lets it get there, for a longer time at
 * each attempt. On a busy machine a fixed time could always end before the child has run. */
static int wait_in_pause(struct tracee *leader, struct user_regs_struct *regs)
{
	struct process *process = leader->process;
	long nap = 50000;
	int status, r;

	for (;; nap = nap < 8000000 ? nap * 2 : nap) {
		r = regs_get(leader, regs);
		if (r < 0 || regs->orig_rax == SYS_pause)
			return r;
		r = stops_resume(leader, STOPS_CONT);
		if (r < 0)
			return r;
		nanosleep(&(struct timespec){.tv_nsec = nap}, NULL);
		/* Never interrupt a tracee that has stopped already: another stop would follow the present
		 * one each time, and the tracee would make no progress. */
		r = stops_wait(process, leader->tid, WNOHANG, &leader, &status);
		if (r == 0)
			r = stops_interrupt(leader);
		if (r == 0)
			r = stops_wait(process, leader->tid, 0, &leader, &status);
		if (r < 0)
			return r;
		if (leader->stop == TRACEE_EXITED)
			return -ESRCH;
	}
}

static int handoff_put_back(struct tracee *leader, const struct handoff *handoff, struct err *err)
{
	uint64_t undo[3] = {SYS_prctl, PR_SET_DUMPABLE, (uint64_t)handoff->dumpable};
	struct user_regs_struct regs;
	int64_t ret;
	int r;

	if (handoff->flags & HANDOFF_DUMPABLE) {
		r = call_by_registers(leader->tid, handoff->parking, undo, &ret, err);
		if (r < 0)
			return r;
	}
	if (handoff->flags & HANDOFF_FORKED) {
		r = regs_set(leader, &handoff->regs);
		if (r == 0 && handoff_set_mask(leader->tid, handoff->sigmask) < 0)
			r = -errno;
		if (r < 0)
			return err_code(err, r, "put back the registers of vpid %d", handoff->vpid);
	} else {
		r = wait_in_pause(leader, &regs);
		regs.rax = (handoff->flags & HANDOFF_DIVERGED) != 0;
		regs.orig_rax = ~0ull;
		if (r == 0)
			r = regs_set(leader, &regs);
		if (r < 0)
			return err_code(err, r, "release vpid %d from its wait", handoff->vpid);
	}
	return 0;
}

int handoff_take(struct process *process, const struct handoff *handoff, struct tracee **leader,
		 struct err *err)
{
	int r;

	process->parked = (handoff->flags & HANDOFF_FORKED) != 0;
	r = stops_seize(process, handoff->rpid, leader, err);
	if (r == -ECHILD)
		r = -ESRCH; /* killed in between, and its status has been taken */

	if (r < 0) {
		if (r != -ESRCH)
			kill(handoff->rpid, SIGKILL);
		return r;
	}
	(*leader)->vtid.n = handoff->vpid;
	process->scratch.a = handoff->scratch;
	process->timeouts.a = handoff->timeouts;
	r = handoff_put_back(*leader, handoff, err);
	process->parked = false;
	if (r < 0 && r != -ESRCH)
		kill(handoff->rpid, SIGKILL);
	return r;
}
