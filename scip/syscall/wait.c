/* Waits for children. The number of a child is released after the wait. */
#include <signal.h>
#include <stddef.h>
#include <sys/wait.h>

#include "scip/syscall/call.h"

int enter_wait4(struct call *call)
{
	return call_enter_regular(call);
}

int exit_wait4(struct call *call)
{
	int32_t real = (int32_t)call->rval, virtual;
	int status = 0, r;

	if (call->rval <= 0)
		return 0;
	virtual = call_virtual(call, real);
	r = call_set_rval(call, virtual);
	if (!call->args[1] || call_read(call, call->args[1], &status, sizeof(status)) < 0)
		status = 0;
	if (WIFEXITED(status) || WIFSIGNALED(status))
		names_process_waited(call->process->names, (struct vpid){virtual}, (struct rpid){real});
	return r;
}

int enter_waitid(struct call *call)
{
	int32_t id = (int32_t)call->args[1], real;

	if ((call->args[0] == P_PID || call->args[0] == P_PGID) && id > 0) {
		real = call_real(call, id);
		if (real != id)
			return call_set_arg(call, 1, (uint64_t)real);
	}
	return names_generation(call->process->names) ? SYSCALL_WANT_EXIT : SYSCALL_CONTINUE;
}

int exit_waitid(struct call *call)
{
	siginfo_t info;
	int32_t real;
	const size_t len = offsetof(siginfo_t, si_pid) + sizeof(info.si_pid);

	if (call->rval != 0 || !call->args[2] || call_read(call, call->args[2], &info, len) < 0 ||
	    info.si_signo != SIGCHLD || info.si_pid <= 0)
		return 0;
	real = info.si_pid;
	info.si_pid = call_virtual(call, real);
	if (call_write(call, call->args[2] + offsetof(siginfo_t, si_pid), &info.si_pid, sizeof(info.si_pid)) <
	    0)
		return 0; /* another thread has unmapped the buffer */
	if (!((int)call->args[3] & WNOWAIT) && info.si_code >= CLD_EXITED && info.si_code <= CLD_DUMPED)
		names_process_waited(call->process->names, (struct vpid){info.si_pid}, (struct rpid){real});
	return 0;
}
