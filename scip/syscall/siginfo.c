/* Finds and translates the process id in a siginfo. */
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/ptrace.h>

#include "scip/syscall/call.h"

/* Follows the kernel's siginfo_layout(): SI_USER, SI_TKILL, SI_QUEUE, SI_MESGQ, other negative codes
 * except those of timers and SIGIO, and SIGCHLD. */
bool siginfo_has_pid(const void *siginfo)
{
	const siginfo_t *info = siginfo;

	if (info->si_signo == SIGCHLD && info->si_code >= CLD_EXITED && info->si_code <= CLD_CONTINUED)
		return true;
	return info->si_code <= 0 && info->si_code != SI_TIMER && info->si_code != SI_SIGIO;
}

static int32_t get_pid(const void *siginfo)
{
	int32_t pid;

	memcpy(&pid, (const char *)siginfo + SIGINFO_PID, sizeof(pid));
	return pid;
}

static bool set_pid(void *siginfo, int32_t pid)
{
	if (get_pid(siginfo) == pid)
		return false;
	memcpy((char *)siginfo + SIGINFO_PID, &pid, sizeof(pid));
	return true;
}

bool syscall_siginfo_to_virtual(struct names *names, void *siginfo)
{
	int32_t pid = get_pid(siginfo);

	return siginfo_has_pid(siginfo) && pid > 0 &&
	       set_pid(siginfo, names_virtual(names, (struct rpid){pid}).n);
}

bool syscall_siginfo_to_real(struct names *names, void *siginfo)
{
	int32_t pid = get_pid(siginfo);

	return siginfo_has_pid(siginfo) && pid > 0 &&
	       set_pid(siginfo, names_real(names, (struct vpid){pid}).n);
}

int syscall_translate_siginfo(struct tracee *tracee)
{
	siginfo_t info;

	if (names_generation(tracee->process->names) == 0)
		return 0;
	if (ptrace(PTRACE_GETSIGINFO, tracee->tid, NULL, &info) < 0)
		return -errno;
	if (!syscall_siginfo_to_virtual(tracee->process->names, &info))
		return 0;
	return ptrace(PTRACE_SETSIGINFO, tracee->tid, NULL, &info) < 0 ? -errno : 0;
}
