/*
 * A husk: a held process whose own code never runs again.
 *
 * The husk is made to execve() the program's own executable, so that /proc/PID/exe, the security domain and
 * the name are right without privilege. Afterwards the husk is in execve's syscall-exit stop: not one
 * instruction of the new program has run, and the kernel will not write to rax again.
 */
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "scip/fill/fill.h"
#include "scip/tracee/memory.h"
#include "scip/tracee/regs.h"
#include "scip/tracee/remote.h"

enum { RED_ZONE = 512, KERNEL_SIGSET = 8 };

struct exec_arguments {
	uint64_t argv[2];
	uint64_t envp[1];
	char path[4096];
};

static int block_all(struct tracee *tracee)
{
	uint64_t all = ~0ull;

	return ptrace(PTRACE_SETSIGMASK, tracee->tid, (void *)KERNEL_SIGSET, &all) < 0 ? -errno : 0;
}

/* Sets the registers to make call `nr` at a `syscall` instruction. */
static int prepare_call(struct tracee *tracee, int64_t nr, uint64_t a, uint64_t b, uint64_t c,
			struct err *err)
{
	struct process *process = tracee->process;
	struct user_regs_struct regs;
	int64_t ret;
	int r = 0;

	if (!process->syscall_insn.a)
		r = remote_call(tracee, &ret, err, SYS_getpid, remote_args(0));
	if (r < 0)
		return r;
	if (!process->syscall_insn.a)
		return err_set(err, -ENOENT, "the husk has no syscall instruction");
	r = regs_get(tracee, &regs);
	if (r < 0)
		return err_code(err, r, "registers of the husk");
	regs.rip = process->syscall_insn.a;
	regs.rax = (uint64_t)nr;
	regs.orig_rax = (uint64_t)-1;
	regs.rdi = a;
	regs.rsi = b;
	regs.rdx = c;
	r = regs_set(tracee, &regs);
	return r < 0 ? err_code(err, r, "registers of the husk") : 0;
}

/* Writes path and arguments to the husk's stack, whose contents are no longer needed. */
static int write_arguments(struct tracee *tracee, const char *path, uint64_t *at, struct err *err)
{
	struct exec_arguments arguments = {0};
	struct user_regs_struct regs;
	size_t len = strlen(path);
	int r = regs_get(tracee, &regs);

	if (r < 0)
		return err_code(err, r, "registers of the husk");
	if (len >= sizeof(arguments.path))
		return err_code(err, -ENAMETOOLONG, "%s", path);
	*at = (regs.rsp - RED_ZONE - sizeof(arguments)) & ~63ull;
	memcpy(arguments.path, path, len + 1);
	arguments.argv[0] = *at + offsetof(struct exec_arguments, path);
	r = memory_write(tracee->process, (struct taddr){*at}, &arguments, sizeof(arguments));
	return r < 0 ? err_code(err, r, "write to the husk's stack") : 0;
}

int fill_exec(struct process *process, const char *path, struct err *err)
{
	struct tracee *tracee = process_leader(process);
	int64_t ret;
	uint64_t at;
	int r;

	if (!tracee)
		return err_code(err, -ESRCH, "execute %s", path);
	r = write_arguments(tracee, path, &at, err);
	if (r == 0)
		r = remote_call(tracee, &ret, err, SYS_execve,
				remote_args(at + offsetof(struct exec_arguments, path), at,
					    at + offsetof(struct exec_arguments, envp)));
	if (r < 0)
		return err_wrap(err, r, "execute %s", path);
	return ret < 0 ? err_code(err, (int)ret, "execute %s", path) : 0;
}

static int resume_with_signal(struct tracee *tracee, int sig)
{
	if (ptrace(PTRACE_CONT, tracee->tid, 0, (void *)(uintptr_t)sig) < 0)
		return -errno;
	tracee->stop = TRACEE_RUNNING;
	return 0;
}

/* Ends the husk by a signal with default action. The husk is resumed until the signal is about to be
 * delivered. */
static int end_by_signal(struct tracee *tracee, int sig, struct err *err)
{
	uint64_t none = 0, fresh[4] = {0}, at;
	struct rlimit no_core = {0, 0};
	struct user_regs_struct regs;
	int64_t ret;
	int status, r = regs_get(tracee, &regs);

	if (r < 0)
		return err_code(err, r, "registers of the husk");
	at = (regs.rsp - RED_ZONE) & ~63ull;
	if (memory_write(tracee->process, (struct taddr){at}, fresh, sizeof(fresh)) < 0)
		return err_code(err, -EFAULT, "write to the husk's stack");
	r = remote_call(tracee, &ret, err, SYS_rt_sigaction,
			remote_args((uint64_t)sig, at, 0, KERNEL_SIGSET));
	if (r < 0)
		return r;
	if (prlimit(tracee->process->pid, RLIMIT_CORE, &no_core, NULL) < 0 ||
	    syscall(SYS_tgkill, tracee->process->pid, tracee->tid, sig) < 0 ||
	    ptrace(PTRACE_SETSIGMASK, tracee->tid, (void *)KERNEL_SIGSET, &none) < 0)
		return err_sys(err, "end the husk by signal %d", sig);
	do {
		if (resume_with_signal(tracee, 0) < 0 || waitpid(tracee->tid, &status, __WALL) < 0 ||
		    !WIFSTOPPED(status))
			return err_set(err, -ESRCH, "the husk did not end as requested");
	} while (status >> 8 != sig);
	return resume_with_signal(tracee, sig);
}

int fill_exit(struct process *process, int status, struct err *err)
{
	struct tracee *tracee = process_leader(process);
	int r;

	if (!tracee)
		return err_code(err, -ESRCH, "end the husk");
	if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) {
		r = kill(process->pid, SIGKILL) < 0 ? -errno : 0;
		tracee->stop = TRACEE_RUNNING;
	} else if (WIFSIGNALED(status)) {
		r = end_by_signal(tracee, WTERMSIG(status), err);
	} else {
		r = block_all(tracee);
		if (r == 0)
			r = prepare_call(tracee, SYS_exit_group, (uint64_t)WEXITSTATUS(status), 0, 0, err);
		if (r == 0)
			r = resume_with_signal(tracee, 0);
	}
	if (r < 0)
		return err_wrap(err, r, "end the husk of vpid %d", process->vpid.n);
	process->held = false;
	return 0;
}
