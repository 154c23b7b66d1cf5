/* Sending signals, and waiting for them. */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "scip/syscall/other_host.h"

/* Sends a signal to the job's processes on this host, except for the caller and stubs; processes of stubs
 * get it on their hosts. scip sends it as SI_QUEUE with the caller's id: the kernel does not let a process
 * queue SI_USER in another's name. Returns their number. */
static int signal_job_here(const struct process *process, int sig)
{
	auto_free struct name_process *all = NULL;
	int n = names_snapshot(process->names, process->keeper, &all), sent = 0;
	siginfo_t info;

	memset(&info, 0, sizeof(info));
	info.si_signo = sig;
	info.si_code = SI_QUEUE;
	info.si_pid = process->pid;
	info.si_uid = getuid();
	for (int i = 0; i < n; i++) {
		pid_t to = all[i].rpid.n;

		if (to <= 0 || to == process->pid || all[i].state == NAME_STATE_DEAD ||
		    all[i].state == NAME_STATE_STUB)
			continue;
		if (sig ? syscall(SYS_rt_sigqueueinfo, to, sig, &info) == 0 : kill(to, 0) == 0)
			sent++;
	}
	return n < 0 ? n : sent;
}

/* kill(-1). Natively it reaches all processes of the user, including supervisors and daemons. Here it
 * reaches the processes of the job on all hosts, except for the caller. */
static int kill_job(struct call *call)
{
	const struct process *process = call->process;
	int sig = (int)call->args[1], here, there = 0;
	struct name_job job;

	if (sig < 0 || sig > 64)
		return call_answer(call, -EINVAL);
	if (other_host_spread(process, 0) && names_job_get(process->names, process->keeper, &job) == 0)
		there = other_host_members(process, 0, job.uuid, sig, &process->vpid.n, 1, NULL);
	here = signal_job_here(process, sig);
	if (here > 0 || there > 0)
		return call_answer(call, 0);
	return call_answer(call, here < 0 ? here : there < 0 ? there : -ESRCH);
}

static bool has_members_here(const struct call *call, int32_t group)
{
	int32_t real = call_real(call, group);

	return real > 1 && real != NAMES_NOBODY &&
	       names_virtual(call->process->names, (struct rpid){real}).n == group && kill(-real, 0) == 0;
}

/* The result from other hosts is the call's result only if no member is on this host. */
static int kill_group(struct call *call)
{
	const struct process *process = call->process;
	int32_t group = -(int32_t)call->args[0];
	auto_free int32_t *stubs = NULL;
	int sig = (int)call->args[1], n, there;
	char host[NAME_TEXT_MAX];
	bool here;

	if (!names_cluster(process->names, NULL) || sig < 0 || sig > 64)
		return call_enter_regular(call);
	if (!group)
		group = call_virtual(call, getpgid(process->pid));
	here = has_members_here(call, group);
	if (!other_host_spread(process, group) &&
	    (here || names_place_find(process->names, (struct vpid){group}, host) < 0))
		return call_enter_regular(call);
	n = other_host_stubs(process->names, group, &stubs);
	if (n < 0)
		return call_answer(call, n);
	there = other_host_members(process, group, "", sig, stubs, (size_t)n, NULL);
	if (here)
		return call_enter_regular(call);
	return call_answer(call, there > 0 ? 0 : there < 0 ? there : -ESRCH);
}

int enter_kill(struct call *call)
{
	int32_t to = (int32_t)call->args[0];

	if (to == -1)
		return kill_job(call);
	if (to <= 0)
		return kill_group(call);
	if (other_host_has(call, to))
		return other_host_signal(call, to, 0, (int)call->args[1], 0);
	return call_enter_regular(call);
}

/* Of a process on another host only the first thread, which has the process's number, is known here. */
int enter_tkill(struct call *call)
{
	int32_t thread = (int32_t)call->args[0];

	if (other_host_has(call, thread))
		return other_host_signal(call, thread, thread, (int)call->args[1], 0);
	return call_enter_regular(call);
}

int enter_tgkill(struct call *call)
{
	int32_t process = (int32_t)call->args[0];

	if (other_host_has(call, process))
		return other_host_signal(call, process, (int32_t)call->args[1], (int)call->args[2], 0);
	return call_enter_regular(call);
}

/* Passes a siginfo of the program on with its si_pid, if it has one, made real. 0 or a verdict, as
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

	if (other_host_has(call, to))
		return other_host_signal(call, to, 0, (int)call->args[1], call->args[2]);
	return with_siginfo(call, 2);
}

int enter_tgsigqueue(struct call *call)
{
	int32_t to = (int32_t)call->args[0];

	if (other_host_has(call, to))
		return other_host_signal(call, to, (int32_t)call->args[1], (int)call->args[2], call->args[3]);
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
		return 0; /* another thread has unmapped the buffer */
	return 0;
}
