/* Sending signals, and waiting for them. */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "scip/syscall/table.h"

/*
 * kill(-1): natively all that the user has, supervisors and daemons included; here the processes of the job
 * but the caller. They get it from scip, as SI_QUEUE with the caller's id, because the kernel lets nobody
 * queue SI_USER in another's name.
 */
static int kill_job(struct call *call)
{
	struct process *process = call->process;
	int sig = (int)call->args[1], sent = 0,
	    n = names_process_list(process->names, process->keeper, NULL, 0);
	auto_free struct name_process *all = calloc((size_t)(n > 0 ? n : 0) + 64, sizeof(*all));
	siginfo_t info;

	if (n < 0 || !all)
		return call_answer(call, n < 0 ? n : -ENOMEM);
	if (sig < 0 || sig > 64)
		return call_answer(call, -EINVAL);
	if (names_process_list(process->names, process->keeper, all, n + 64) < n)
		n = names_process_list(process->names, process->keeper, all, n + 64);
	memset(&info, 0, sizeof(info));
	info.si_signo = sig;
	info.si_code = SI_QUEUE;
	info.si_pid = process->pid;
	info.si_uid = getuid();
	for (int i = 0; i < n; i++) {
		pid_t to = all[i].rpid.n;

		if (to <= 0 || to == process->pid || all[i].state == NAME_STATE_DEAD)
			continue;
		if (sig ? syscall(SYS_rt_sigqueueinfo, to, sig, &info) == 0 : kill(to, 0) == 0)
			sent++;
	}
	return call_answer(call, sent ? 0 : -ESRCH);
}

int enter_kill(struct call *call)
{
	if ((int32_t)call->args[0] == -1)
		return kill_job(call);
	if (elsewhere(call, (int32_t)call->args[0]))
		return elsewhere_signal(call, (int32_t)call->args[0], 0, (int)call->args[1], 0);
	return call_enter_regular(call);
}

/* A siginfo that the program hands in: its si_pid, if it has one, is virtual. 0 or a verdict, as
 * call_scratch(). */
static int replace_siginfo(struct call *call, unsigned arg)
{
	char info[SIGINFO_BYTES];

	if (!call->args[arg] || call_read(call, call->args[arg], info, sizeof(info)) < 0 ||
	    !syscall_siginfo_to_real(call->process->names, info))
		return SYSCALL_CONTINUE;
	return call_replace(call, arg, info, sizeof(info));
}

static int with_siginfo(struct call *call, unsigned arg)
{
	int info = replace_siginfo(call, arg), numbers;

	if (info < 0 || call->mapping || info == SYSCALL_SKIP)
		return info;
	numbers = call_enter_regular(call);
	return numbers < 0 || numbers > info ? numbers : info;
}

int enter_sigqueue(struct call *call)
{
	int32_t to = (int32_t)call->args[0];

	if (to > 0 && elsewhere(call, to))
		return elsewhere_signal(call, to, 0, (int)call->args[1], call->args[2]);
	return with_siginfo(call, 2);
}

int enter_tgsigqueue(struct call *call)
{
	int32_t to = (int32_t)call->args[0];

	if (to > 0 && elsewhere(call, to))
		return elsewhere_signal(call, to, (int32_t)call->args[1], (int)call->args[2], call->args[3]);
	return with_siginfo(call, 3);
}

int enter_pidfd_signal(struct call *call)
{
	return with_siginfo(call, 2);
}

int enter_sigtimedwait(struct call *call)
{
	return names_generation(call->process->names) ? SYSCALL_WANT_EXIT : SYSCALL_CONTINUE;
}

int exit_sigtimedwait(struct call *call)
{
	char info[SIGINFO_BYTES];

	if (call->rval <= 0 || call_read(call, call->args[1], info, sizeof(info)) < 0 ||
	    !syscall_siginfo_to_virtual(call->process->names, info))
		return 0;
	if (call_write(call, call->args[1], info, sizeof(info)) < 0)
		return 0; /* the program unmapped it meanwhile: its own doing */
	return 0;
}
