/* Births and exits, and the ids of a process and its relatives. */
#include <errno.h>
#include <linux/sched.h>
#include <stddef.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "scip/syscall/other_host.h"
#include "scip/tracee/memory.h"
#include "scip/tracee/regs.h"

int enter_getpid(struct call *call)
{
	return call_answer(call, call->process->vpid.n);
}

int enter_gettid(struct call *call)
{
	return call_answer(call, call->tracee->vtid.n);
}

/* A process whose parent is on another host is a child of its keeper on this host. */
int enter_getppid(struct call *call)
{
	struct name_process process;

	if (names_process_find_real(call->process->names, (struct rpid){call->process->pid}, &process) == 0 &&
	    process.remote_parent)
		return call_answer(call, process.parent.n);
	return SYSCALL_WANT_EXIT;
}

/* Looks up a group's or session's number in scip: one stop instead of two. */
static int answer_asked(struct call *call, pid_t (*ask)(pid_t), int32_t virtual)
{
	int32_t real = virtual ? call_real(call, virtual) : call->process->pid;
	pid_t found = ask(real);

	return call_answer(call, found < 0 ? -errno : call_virtual(call, found));
}

int enter_getpgid(struct call *call)
{
	int r = other_host_call(call);

	if (r != SYSCALL_CONTINUE)
		return r;
	return answer_asked(call, getpgid, (int32_t)call->args[0]);
}

int enter_getpgrp(struct call *call)
{
	return answer_asked(call, getpgid, 0);
}

int enter_getsid(struct call *call)
{
	int r = other_host_call(call);

	if (r != SYSCALL_CONTINUE)
		return r;
	return answer_asked(call, getsid, (int32_t)call->args[0]);
}

/* Translates the number that the kernel has stored in the parent's memory. Where the child shares that
 * memory, syscall_newborn() has done it: the child may have ended by now, and the kernel may have cleared
 * the word. */
static int exit_birth(struct call *call, uint64_t flags, uint64_t parent_tid)
{
	if (call->rval > 0 && (flags & CLONE_PARENT_SETTID) && !(flags & CLONE_VM))
		call_virtual_at(call, parent_tid);
	return call_exit_regular(call);
}

int enter_clone(struct call *call)
{
	if (call->args[0] & CLONE_UNTRACED)
		return call_set_arg(call, 0, call->args[0] & ~(uint64_t)CLONE_UNTRACED);
	return SYSCALL_WANT_EXIT;
}

int exit_clone(struct call *call)
{
	return exit_birth(call, call->args[0], call->args[2]);
}

/* Makes the call with a copy of its arguments without CLONE_UNTRACED: no child escapes its supervisor. */
static int strip_untraced(struct call *call)
{
	char copy[CALL_SLOT_BYTES];
	size_t size = (size_t)call->args[1];
	uint64_t flags;

	if (size < sizeof(flags) || size > sizeof(copy) || call_read(call, call->args[0], copy, size) < 0)
		return SYSCALL_WANT_EXIT; /* the kernel refuses it */
	memcpy(&flags, copy, sizeof(flags));
	flags &= ~(uint64_t)CLONE_UNTRACED;
	memcpy(copy, &flags, sizeof(flags));
	return call_replace(call, 0, copy, size);
}

int enter_clone3(struct call *call)
{
	struct clone_args args;

	if (call_read(call, call->args[0], &args, offsetof(struct clone_args, exit_signal)) == 0) {
		call->keep[0] = args.flags;
		call->keep[1] = args.parent_tid;
	}
	if (call->keep[0] & CLONE_UNTRACED)
		return strip_untraced(call);
	return SYSCALL_WANT_EXIT;
}

int exit_clone3(struct call *call)
{
	return exit_birth(call, call->keep[0], call->keep[1]);
}

/*
 * A newborn stops before its first instruction, with the registers of the call that made it. The kernel
 * has stored the numbers for CLONE_CHILD_SETTID and CLONE_PARENT_SETTID by then.
 */
int syscall_newborn(const struct process *process, pid_t tid, struct vpid vtid)
{
	const struct process self = {.pid = tid, .names = process->names};
	struct user_regs_struct regs;
	struct clone_args args = {0};
	call_handler *made_by;

	if (vtid.n == tid)
		return 0;
	if (ptrace(PTRACE_GETREGS, tid, NULL, &regs) < 0)
		return -errno;
	made_by = syscall_row((int64_t)regs.orig_rax) ? syscall_handlers[regs.orig_rax].exit : NULL;
	if (made_by == exit_clone) {
		args.flags = regs.rdi;
		args.parent_tid = regs.rdx;
		args.child_tid = regs.r10;
	} else if (made_by != exit_clone3 || memory_read(&self, (struct taddr){regs.rdi}, &args,
							 offsetof(struct clone_args, exit_signal)) < 0) {
		return 0;
	}
	if ((args.flags & CLONE_CHILD_SETTID) && args.child_tid &&
	    memory_write(&self, (struct taddr){args.child_tid}, &vtid.n, sizeof(vtid.n)) == -ESRCH)
		return -ESRCH;
	if ((args.flags & CLONE_PARENT_SETTID) && (args.flags & CLONE_VM) && args.parent_tid &&
	    memory_write(&self, (struct taddr){args.parent_tid}, &vtid.n, sizeof(vtid.n)) == -ESRCH)
		return -ESRCH;
	return 0;
}
