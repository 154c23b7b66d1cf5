#include "scip/tracee/pending.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>

#include "scip/tracee/regs.h"
#include "scip/tracee/remote_arch.h"

enum { SYSCALL_INSN_SIZE = 2 };

static int fill_call(Pbeam__PendingCall *call, const struct user_regs_struct *regs, int64_t number,
		     int restart)
{
	const uint64_t args[6] = {regs->rdi, regs->rsi, regs->rdx, regs->r10, regs->r8, regs->r9};

	call->args = malloc(sizeof(args));
	if (!call->args)
		return -ENOMEM;
	memcpy(call->args, args, sizeof(args));
	call->n_args = 6;
	call->number = number;
	call->restart = restart;
	return 0;
}

int pending_saved_registers(struct tracee *tracee, struct user_regs_struct *regs, Pbeam__PendingCall *call,
			    struct err *err)
{
	int64_t number;
	int code = regs_get(tracee, regs);

	if (code < 0)
		return err_code(err, code, "read the registers of thread %d", tracee->tid);
	regs_abort_rseq(tracee, regs);
	if (!remote_arch_in_restart(regs))
		return 0;
	number = (int64_t)regs->orig_rax;
	if (number == SYS_restart_syscall && tracee->restart_call >= 0)
		number = tracee->restart_call;
	code = fill_call(call, regs, number, (int)(int64_t)regs->rax);
	if (code < 0)
		return err_code(err, code, "save the call of thread %d", tracee->tid);
	regs->rax = (uint64_t)number;
	regs->rip -= SYSCALL_INSN_SIZE;
	regs->orig_rax = UINT64_MAX;
	return 0;
}
