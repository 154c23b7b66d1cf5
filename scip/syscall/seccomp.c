/*
 * seccomp() and prctl().
 *
 * Filters that a program installs are recorded once the kernel has accepted them. Strict mode is
 * impossible beside scip's own filter; it is replaced by a filter that allows the same four calls.
 */
#include <errno.h>
#include <linux/audit.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "namespace/record.h"
#include "scip/syscall/call.h"
#include "scip/tracee/regs.h"

#define DUMPABLE_MAX 1
#ifndef PR_SCHED_CORE
#define PR_SCHED_CORE 62
#endif

static const struct sock_filter strict[] = {
	BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch)),
	BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AUDIT_ARCH_X86_64, 0, 5),
	BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
	BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_read, 4, 0),
	BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_write, 3, 0),
	BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit, 2, 0),
	BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_rt_sigreturn, 1, 0),
	BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_THREAD),
	BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
};

/* As the kernel's struct sock_fprog. */
struct remote_program {
	uint16_t len;
	uint16_t pad[3];
	uint64_t filter;
};

static int become_strict(struct call *call)
{
	struct remote_program program = {.len = sizeof(strict) / sizeof(strict[0])};
	struct taddr where;
	int r = call_scratch(call, sizeof(program), strict, sizeof(strict), &where);

	if (r)
		return r;
	program.filter = where.a;
	r = call_replace(call, 2, &program, sizeof(program));
	if (r == SYSCALL_WANT_EXIT)
		r = call_set_arg(call, 1, 0);
	if (r == SYSCALL_WANT_EXIT)
		r = call_set_arg(call, 0, SECCOMP_SET_MODE_FILTER);
	return r == SYSCALL_WANT_EXIT && regs_set_call(call->tracee, SYS_seccomp) < 0 ? -ESRCH : r;
}

/* keep[0]: address of the program's struct sock_fprog; keep[1]: to be recorded; keep[2]: a strict filter of
 * ours */
int enter_seccomp(struct call *call)
{
	uint32_t operation = (uint32_t)call->args[0];

	if (operation == SECCOMP_SET_MODE_STRICT && !call->args[1] && !call->args[2]) {
		call->keep[1] = call->keep[2] = 1;
		return become_strict(call);
	}
	if (operation != SECCOMP_SET_MODE_FILTER)
		return SYSCALL_CONTINUE;
	call->keep[0] = call->args[2];
	call->keep[1] = 1;
	return SYSCALL_WANT_EXIT;
}

int exit_seccomp(struct call *call)
{
	struct process *process = call->process;
	struct remote_program program;
	auto_free struct sock_filter *filter = NULL;
	int r;

	if (!call->keep[1] || call->rval < 0)
		return 0;
	process->filters = true;
	if (call->keep[2]) {
		r = record_filter_add(process->keeper, process->vpid, strict, sizeof(strict));
	} else {
		r = call_read(call, call->keep[0], &program, sizeof(program));
		filter = r == 0 ? calloc(program.len, sizeof(*filter)) : NULL;
		if (r == 0)
			r = filter ? call_read(call, program.filter, filter, program.len * sizeof(*filter))
				   : -ENOMEM;
		if (r == 0)
			r = record_filter_add(process->keeper, process->vpid, filter,
					      program.len * sizeof(*filter));
	}
	if (r < 0)
		log_warn("process %d: its seccomp filter could not be recorded: %s", process->vpid.n,
			 strerror(-r));
	return 0;
}

static int translate_argument(struct call *call, unsigned arg)
{
	int32_t number = (int32_t)call->args[arg], real = number > 0 ? call_real(call, number) : number;

	return real == number ? SYSCALL_CONTINUE : call_set_arg(call, arg, (uint64_t)(int64_t)real);
}

int enter_prctl(struct call *call)
{
	switch ((int)call->args[0]) {
	case PR_SET_SECCOMP:
		if (call->args[1] == SECCOMP_MODE_STRICT) {
			call->keep[1] = call->keep[2] = 1;
			return become_strict(call);
		}
		call->keep[0] = call->args[2];
		call->keep[1] = call->args[1] == SECCOMP_MODE_FILTER;
		return SYSCALL_WANT_EXIT;
	case PR_SET_DUMPABLE:
		/* if the kernel did it, scip could not dump the process or hand over its children */
		if (call->args[1] > DUMPABLE_MAX)
			return call_answer(call, -EINVAL);
		call->process->dumpable = 1 + (int)call->args[1];
		return call_answer(call, 0);
	case PR_GET_DUMPABLE:
		return call->process->dumpable ? call_answer(call, call->process->dumpable - 1)
					       : SYSCALL_CONTINUE;
	case PR_SET_PTRACER:
		return translate_argument(call, 1);
	case PR_SCHED_CORE:
		return translate_argument(call, 2);
	default:
		return SYSCALL_CONTINUE;
	}
}

int exit_prctl(struct call *call)
{
	return (int)call->args[0] == PR_SET_SECCOMP ? exit_seccomp(call) : 0;
}
