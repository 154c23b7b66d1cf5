/*
 * Trapped calls: lookup, regular rows, and the way from the seccomp stop to the exit stop.
 *
 * A call that needs no work after it is answered or continued at its seccomp stop and costs one stop.
 * The exit stop is requested only if an argument was changed or a result must be translated. Until then
 * the state of the call is in tracee->frame.
 */
#include <errno.h>
#include <linux/audit.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <unistd.h>

#include "base/log.h"
#include "proto/message.h"
#include "scip/syscall/call.h"
#include "scip/tracee/regs.h"
#include "syscalls/clock_id.h"

int call_enter_regular(struct call *call)
{
	const struct syscall_row *row = call->row;
	int verdict = row->ret == KIND_RET_VPID ? SYSCALL_WANT_EXIT : SYSCALL_CONTINUE;

	for (unsigned i = 0; i < 6 && row->args[i]; i++) {
		int32_t number = (int32_t)call->args[i], real;
		int r = 0;

		switch (row->args[i]) {
		case KIND_VPID:
		case KIND_VTID:
		case KIND_VPGID:
		case KIND_VPID_ALL:
			real = number < 0 && row->args[i] != KIND_VPID_ALL ? number : call_real(call, number);
			if (real != number)
				r = call_set_arg(call, i, (uint64_t)(int64_t)real);
			break;
		case KIND_CLOCK:
			number = clock_id_number(number);
			real = number > 0 ? call_real(call, number) : number;
			if (real != number)
				r = call_set_arg(
					call, i,
					(uint64_t)(int64_t)clock_id_of((int32_t)call->args[i], real));
			break;
		case KIND_PATH:
			r = proc_path_enter(call, i > 0 && row->args[i - 1] == KIND_DIRFD ? (int)i - 1 : -1,
					    i);
			break;
		default:
			break;
		}
		if (r < 0 || call->mapping)
			return r;
		if (r > verdict)
			verdict = r;
		if (r == SYSCALL_SKIP)
			return r;
	}
	return verdict;
}

int call_exit_regular(struct call *call)
{
	int32_t number = (int32_t)call->rval, virtual;

	if (call->row->ret != KIND_RET_VPID || call->rval <= 0)
		return 0;
	virtual = call_virtual(call, number);
	return virtual == number ? 0 : call_set_rval(call, virtual);
}

static void drop_frame(struct tracee *tracee)
{
	struct call *call = tracee->frame;

	if (call && call->fd >= 0)
		close(call->fd);
	free(call);
	tracee->frame = NULL;
	tracee->call = -1;
	tracee->want_exit_stop = false;
}

/* Reads number and arguments of the call at a seccomp stop. 1 if the call is not in the table. */
static int dispatch_look(struct tracee *tracee, struct call *call)
{
	struct __ptrace_syscall_info info;
	long n = ptrace(PTRACE_GET_SYSCALL_INFO, tracee->tid, sizeof(info), &info);

	if (n < 0)
		return -errno;
	memset(call, 0, sizeof(*call));
	call->tracee = tracee;
	call->process = tracee->process;
	call->slot = -1;
	call->fd = -1;
	if (info.op != PTRACE_SYSCALL_INFO_SECCOMP && info.op != PTRACE_SYSCALL_INFO_ENTRY)
		return -EINVAL;
	call->nr = (int64_t)info.seccomp.nr;
	call->ip = info.instruction_pointer;
	for (unsigned i = 0; i < 6; i++)
		call->args[i] = call->now[i] = info.seccomp.args[i];
	/* int 0x80 has its own numbers, x32 its own bit: both are answered as by a kernel without them */
	if (info.arch != AUDIT_ARCH_X86_64)
		return 1;
	call->row = syscall_row(call->nr);
	return call->row ? 0 : 1;
}

/* Counted in the name table for pbeamctl doctor. */
static int enter_unknown(struct call *call)
{
	struct process *process = call->process;
	struct name_process entry;

	process->calls->unknown_calls++;
	log_info("vpid %d: call %lld is not in the table: ENOSYS", process->vpid.n, (long long)call->nr);
	if (names_process_get(process->names, process->vpid, &entry) == 0) {
		entry.unknown_calls = process->calls->unknown_calls;
		if (names_process_update(process->names, &entry) < 0)
			log_debug("vpid %d is gone from the name table", process->vpid.n);
	}
	return call_answer(call, -ENOSYS);
}

int syscall_enter(struct tracee *tracee)
{
	struct call call;
	call_handler *enter;
	int r;

	drop_frame(tracee);
	r = dispatch_look(tracee, &call);
	if (r < 0)
		return r;
	if (r > 0)
		return enter_unknown(&call);
	enter = syscall_handlers[call.nr].enter;
	r = enter ? enter(&call) : call_enter_regular(&call);
	if (r == SYSCALL_WANT_EXIT) {
		tracee->frame = malloc(sizeof(call));
		if (!tracee->frame) {
			if (call.fd >= 0)
				close(call.fd);
			return -ENOMEM;
		}
		memcpy(tracee->frame, &call, sizeof(call));
		tracee->call = call.nr;
		tracee->want_exit_stop = true;
	} else if (call.fd >= 0) {
		close(call.fd);
	}
	return r;
}

/* Returns to the instruction, as if the call had not been made yet. */
static int make_again(struct call *call)
{
	struct user_regs_struct regs;
	int r = regs_get(call->tracee, &regs);

	if (r < 0)
		return r;
	regs.rip = call->ip - 2;
	regs.rax = (unsigned long long)call->nr;
	regs.orig_rax = (unsigned long long)-1;
	return regs_set(call->tracee, &regs);
}

static int exit_mapping(struct call *call)
{
	if (call->rval < 0 && call->rval >= -4095)
		return 0; /* the address space is full: the program gets the error */
	call->process->scratch.a = (uint64_t)call->rval;
	return CALL_AGAIN;
}

static bool call_was_executed(const struct call *call)
{
	return call->row->file_use == FILE_USE_EXECUTE && call->rval == 0 && !call->mapping;
}

int syscall_exit(struct tracee *tracee)
{
	struct call *call = tracee->frame;
	call_handler *exit_handler;
	int r = 0;

	if (!call)
		return 0;
	exit_handler = syscall_handlers[call->nr].exit;
	errno = 0;
	call->rval = ptrace(PTRACE_PEEKUSER, tracee->tid, offsetof(struct user_regs_struct, rax), NULL);
	if (errno)
		r = -errno;
	/* after an execve the registers are the new program's */
	for (unsigned i = 0; i < 6 && r == 0 && !call_was_executed(call); i++)
		if (call->now[i] != call->args[i])
			r = regs_set_arg(tracee, i, call->args[i]);
	if (r == 0 && call->mapping)
		r = exit_mapping(call);
	else if (r == 0)
		r = exit_handler ? exit_handler(call) : call_exit_regular(call);
	if (r == CALL_AGAIN)
		r = make_again(call);
	drop_frame(tracee);
	return r;
}

int syscall_expect_birth(struct tracee *parent)
{
	struct user_regs_struct regs;
	struct call *call;
	int r;

	if (parent->frame)
		return 0; /* trapped: its exit stop is requested already */
	r = regs_get(parent, &regs);
	if (r < 0)
		return r;
	call = calloc(1, sizeof(*call));
	if (!call)
		return -ENOMEM;
	*call = (struct call){
		.tracee = parent,
		.process = parent->process,
		.nr = (int64_t)regs.orig_rax,
		.ip = regs.rip,
		.args = {regs.rdi, regs.rsi, regs.rdx, regs.r10, regs.r8, regs.r9},
		.slot = -1,
		.fd = -1,
	};
	memcpy(call->now, call->args, sizeof(call->now));
	call->row = syscall_row(call->nr);
	if (!call->row || call->row->ret != KIND_RET_VPID) {
		free(call);
		return 0; /* not a call that makes a process: a 32-bit entry */
	}
	if (syscall_handlers[call->nr].enter)
		r = syscall_handlers[call->nr].enter(call);
	parent->frame = call;
	parent->call = call->nr;
	parent->want_exit_stop = true;
	return r < 0 ? r : 0;
}

int syscall_attach(struct process *process)
{
	process->calls = calloc(1, sizeof(*process->calls));
	return process->calls ? 0 : -ENOMEM;
}

int syscall_save(const struct process *process, Pbeam__ScipState *out)
{
	const struct syscall_state *calls = process->calls;

	out->traps_receive = calls->traps_receive;
	out->traps_send = calls->traps_send;
	out->unknown_calls = calls->unknown_calls;
	return message_bytes(&out->signalfds, calls->signalfds, sizeof(calls->signalfds));
}

int syscall_load(struct process *process, const Pbeam__ScipState *saved)
{
	struct syscall_state *calls = process->calls;

	if (saved->signalfds.len != sizeof(calls->signalfds))
		return -EPROTO;
	calls->traps_receive = saved->traps_receive;
	calls->traps_send = saved->traps_send;
	calls->unknown_calls = saved->unknown_calls;
	memcpy(calls->signalfds, saved->signalfds.data, sizeof(calls->signalfds));
	return 0;
}

void syscall_detach(struct process *process)
{
	free(process->calls->remote.v);
	paths_free(&process->calls->paths);
	free(process->calls);
	process->calls = NULL;
}

void syscall_forget(struct tracee *tracee)
{
	drop_frame(tracee);
}
