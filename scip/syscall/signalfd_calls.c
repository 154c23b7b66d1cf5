/*
 * The sender's number in what a program reads from a signalfd.
 *
 * read() is not trapped in general, whatever names have diverged. When a signalfd is made or
 * duplicated, or a process with one is restored, a small filter for its number is added from inside. It
 * traps read() of that number and the calls that duplicate it. A number that is no longer a signalfd
 * costs one stop.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>

#include "base/io.h"
#include "base/log.h"
#include "scip/syscall/call.h"
#include "scip/tracee/procfs.h"

#define FDS_MAX 64u

struct fds {
	pid_t pid;
	int v[FDS_MAX];
	unsigned n;
};

static bool descriptor_is_signalfd(pid_t tid, int fd)
{
	char link[64], target[64];

	snprintf(link, sizeof(link), "/proc/%d/fd/%d", tid, fd);
	return io_readlink(AT_FDCWD, link, target, sizeof(target)) == 0 &&
	       !strcmp(target, "anon_inode:[signalfd]");
}

static int signalfd_note(int fd, void *arg)
{
	struct fds *fds = arg;

	if (fds->n < FDS_MAX && descriptor_is_signalfd(fds->pid, fd))
		fds->v[fds->n++] = fd;
	return 0;
}

#define TRAPPED_MAX 8u

/* The calls that are trapped for a signalfd. */
static unsigned trapped_calls(uint32_t calls[TRAPPED_MAX])
{
	unsigned n = 0;

	for (uint32_t nr = 0; nr < SYSCALL_ROWS && n < TRAPPED_MAX; nr++)
		if (syscall_table[nr].on_signalfd)
			calls[n++] = nr;
	return n;
}

static bool signalfd_is_known(const struct process *process, int fd)
{
	return fd < SIGNALFDS_MAX && process->calls->signalfds[fd / 64] >> fd % 64 & 1;
}

static void signalfd_learn(struct process *process, int fd)
{
	if (fd < SIGNALFDS_MAX)
		process->calls->signalfds[fd / 64] |= 1ull << fd % 64;
}

/* ld arch; jne allow; ld nr; jeq one of these calls ...; ja allow; ld fd; jeq one of the descriptors ...
 * trace; allow; trace */
static int signalfd_trap(struct tracee *tracee, const struct fds *wanted, struct err *err)
{
	uint32_t calls[TRAPPED_MAX];
	unsigned n_calls = trapped_calls(calls);
	struct sock_filter code[FDS_MAX + TRAPPED_MAX + 8];
	struct sock_fprog program = {.filter = code};
	struct fds fds = {.n = 0};
	unsigned n = 0;
	int r;

	for (unsigned i = 0; i < wanted->n; i++)
		if (!signalfd_is_known(tracee->process, wanted->v[i]))
			fds.v[fds.n++] = wanted->v[i];
	if (fds.n == 0)
		return 0;
	code[n++] =
		(struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch));
	code[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AUDIT_ARCH_X86_64, 0,
						 (uint8_t)(n_calls + 1));
	code[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
	for (unsigned i = 0; i < n_calls; i++)
		code[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, calls[i],
							 (uint8_t)(n_calls - i), 0);
	code[n++] = (struct sock_filter)BPF_STMT(BPF_JMP | BPF_JA, fds.n + 1);
	code[n++] =
		(struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args));
	for (unsigned i = 0; i < fds.n; i++)
		code[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)fds.v[i],
							 (uint8_t)(fds.n - i), 0);
	code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRACE | TRAP_ROW);
	program.len = (unsigned short)n;
	r = filter_load(tracee, &program, err);
	for (unsigned i = 0; i < fds.n && r == 0; i++)
		signalfd_learn(tracee->process, fds.v[i]);
	return r;
}

int syscall_filter_signalfds(struct tracee *tracee, struct err *err)
{
	struct fds fds = {.pid = tracee->process->pid};
	char dir[32];
	int r;

	snprintf(dir, sizeof(dir), "/proc/%d/fd", fds.pid);
	r = procfs_each_number(dir, signalfd_note, &fds);
	if (r < 0)
		return err_code(err, r, "list the descriptors of process %d", fds.pid);
	return signalfd_trap(tracee, &fds, err);
}

/* Traps the number that the call has returned. */
static int new_number(struct call *call)
{
	struct fds fds = {.v = {(int)call->rval}, .n = 1};
	struct err err = ERR_INIT;

	if (call->rval >= 0 && signalfd_trap(call->tracee, &fds, &err) < 0)
		log_warn("process %d: numbers in its signalfd stay real: %s", call->process->vpid.n,
			 err.text);
	return 0;
}

int exit_signalfd(struct call *call)
{
	return new_number(call); /* a signalfd that was changed is known */
}

int enter_dup(struct call *call)
{
	return descriptor_is_signalfd(call->tracee->tid, (int)call->args[0]) ? SYSCALL_WANT_EXIT
									     : SYSCALL_CONTINUE;
}

int exit_dup(struct call *call)
{
	return descriptor_is_signalfd(call->tracee->tid, (int)call->rval) ? new_number(call) : 0;
}

int enter_read(struct call *call)
{
	return names_generation(call->process->names) &&
			       descriptor_is_signalfd(call->tracee->tid, (int)call->args[0])
		       ? SYSCALL_WANT_EXIT
		       : SYSCALL_CONTINUE;
}

int exit_read(struct call *call)
{
	struct signalfd_siginfo info;

	for (int64_t at = 0; at + (int64_t)sizeof(info) <= call->rval; at += (int64_t)sizeof(info)) {
		siginfo_t same;

		if (call_read(call, call->args[1] + (uint64_t)at, &info, sizeof(info)) < 0)
			return 0;
		memset(&same, 0, sizeof(same));
		same.si_signo = (int)info.ssi_signo;
		same.si_code = info.ssi_code;
		if (siginfo_has_pid(&same))
			call_virtual_at(call, call->args[1] + (uint64_t)at +
						      offsetof(struct signalfd_siginfo, ssi_pid));
	}
	return 0;
}
