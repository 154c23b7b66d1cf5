/* Checks of what the kernel lets this user do to its own processes. */
#include <errno.h>
#include <fcntl.h>
#include <linux/kcmp.h>
#include <linux/seccomp.h>
#include <linux/userfaultfd.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "pbeamctl/doctor.h"

#ifndef UFFD_USER_MODE_ONLY
#define UFFD_USER_MODE_ONLY 1
#endif

static enum finding doctor_report(char found[128], enum finding finding, const char *text)
{
	snprintf(found, 128, "%s", text);
	return finding;
}

/* Reports "works", or errno if `r`, a system call's result, is negative. */
static enum finding doctor_judge(char found[128], long r, enum finding otherwise)
{
	return r < 0 ? doctor_report(found, otherwise, strerror(errno))
		     : doctor_report(found, FINDING_GOOD, "works");
}

/* Forks a child that sleeps until end_child(). */
static pid_t doctor_start_child(void)
{
	pid_t child = fork();

	if (child == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		for (;;)
			pause();
	}
	return child;
}

static void end_child(pid_t child)
{
	kill(child, SIGKILL);
	waitpid(child, NULL, __WALL);
}

static enum finding look_ptrace(char found[128])
{
	pid_t child = doctor_start_child();
	enum finding r;

	if (child < 0)
		return doctor_judge(found, -1, FINDING_BAD);
	r = doctor_judge(found, ptrace(PTRACE_SEIZE, child, 0, PTRACE_O_EXITKILL | PTRACE_O_TRACESECCOMP),
			 FINDING_BAD);
	end_child(child);
	return r;
}

static enum finding look_ptrace_scope(char found[128])
{
	auto_close int fd = open("/proc/sys/kernel/yama/ptrace_scope", O_RDONLY | O_CLOEXEC);
	char text[16] = "";
	int scope;

	if (fd < 0 || read(fd, text, sizeof(text) - 1) <= 0)
		return doctor_report(found, FINDING_GOOD, "0 (no Yama)");
	scope = atoi(text);
	snprintf(found, 128, "%d", scope);
	return scope >= 2 ? FINDING_BAD : FINDING_GOOD;
}

static enum finding look_seccomp(char found[128])
{
	uint32_t action = SECCOMP_RET_TRACE;

	return doctor_judge(found, syscall(SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 0, &action), FINDING_BAD);
}

static enum finding look_pidfd_getfd(char found[128])
{
	pid_t child = doctor_start_child();
	enum finding r;
	int pidfd, fd = -1;

	if (child < 0)
		return doctor_judge(found, -1, FINDING_BAD);
	pidfd = (int)syscall(SYS_pidfd_open, child, 0);
	if (pidfd >= 0)
		fd = (int)syscall(SYS_pidfd_getfd, pidfd, STDERR_FILENO, 0);
	/* EBADF: we have no standard error; the call itself is allowed. */
	r = fd < 0 && errno == EBADF ? doctor_report(found, FINDING_GOOD, "works")
				     : doctor_judge(found, fd, FINDING_BAD);
	if (fd >= 0)
		close(fd);
	if (pidfd >= 0)
		close(pidfd);
	end_child(child);
	return r;
}

static enum finding look_kcmp(char found[128])
{
	return doctor_judge(found, syscall(SYS_kcmp, getpid(), getpid(), KCMP_FILES, 0, 0), FINDING_BAD);
}

static enum finding look_mm_map(char found[128])
{
	unsigned size = 0;

	return doctor_judge(found, prctl(PR_SET_MM, PR_SET_MM_MAP_SIZE, &size, 0, 0), FINDING_BAD);
}

static enum finding look_pagemap_scan(char found[128])
{
	/* PAGEMAP_SCAN, which older headers lack. Number and structure are ABI since Linux 6.7
	 * (include/uapi/linux/fs.h). */
	struct {
		uint64_t size, flags, start, end, walk_end, vec, vec_len, max_pages, inverted, mask, anyof,
			ret;
	} arg = {.size = sizeof(arg)};
	struct {
		uint64_t start, end, categories;
	} region;
	enum { PRESENT = 1 << 3 };
	auto_close int fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
	long page = sysconf(_SC_PAGESIZE);
	void *map = mmap(NULL, (size_t)page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	enum finding r;

	if (fd < 0 || map == MAP_FAILED)
		return doctor_judge(found, -1, FINDING_LACKS);
	arg.start = (uintptr_t)map;
	arg.end = arg.start + (uint64_t)page;
	arg.vec = (uintptr_t)&region;
	arg.vec_len = 1;
	arg.ret = arg.anyof = PRESENT;
	r = doctor_judge(found, ioctl(fd, _IOC(_IOC_READ | _IOC_WRITE, 'f', 16, sizeof(arg)), &arg),
			 FINDING_LACKS);
	munmap(map, (size_t)page);
	return r;
}

static enum finding look_userfaultfd(char found[128])
{
	int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY);
	enum finding r = doctor_judge(found, fd, FINDING_LACKS);

	if (fd >= 0)
		close(fd);
	return r;
}

static enum finding look_user_namespaces(char found[128])
{
	pid_t child = fork();
	int status = 0;

	if (child == 0)
		_exit(unshare(CLONE_NEWUSER) == 0 ? 0 : errno);
	if (child < 0 || waitpid(child, &status, 0) < 0)
		return doctor_judge(found, -1, FINDING_LACKS);
	errno = WEXITSTATUS(status);
	return doctor_judge(found, errno ? -1 : 0, FINDING_LACKS);
}

static enum finding look_no_new_privs(char found[128])
{
	pid_t child = fork();
	int status = 0;

	if (child == 0)
		_exit(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 ? 0 : errno);
	if (child < 0 || waitpid(child, &status, 0) < 0)
		return doctor_judge(found, -1, FINDING_BAD);
	errno = WEXITSTATUS(status);
	return doctor_judge(found, errno ? -1 : 0, FINDING_BAD);
}

const struct check doctor_checks[] = {
	{"ptrace", "scip supervises each process with it; nothing runs without it",
	 "allow ptrace; in a container the seccomp profile or the capability set forbids it", look_ptrace},
	{"ptrace_scope", "0 and 1 let scip trace its own children, 2 and 3 forbid it to ordinary users",
	 "as root: sysctl kernel.yama.ptrace_scope=1", look_ptrace_scope},
	{"seccomp", "a filter traps the calls that carry names; the others run at full speed",
	 "use a kernel with CONFIG_SECCOMP_FILTER", look_seccomp},
	{"no_new_privs",
	 "allows an ordinary user to load the filter; set-uid programs gain no privilege under scip",
	 "allow prctl(PR_SET_NO_NEW_PRIVS)", look_no_new_privs},
	{"pidfd_getfd", "duplicates a process's descriptors for checkpoint and restore",
	 "use Linux 5.6 or later and allow the call in the container's seccomp profile", look_pidfd_getfd},
	{"kcmp", "finds the descriptors that share an open file description",
	 "use a kernel with CONFIG_KCMP and allow the call", look_kcmp},
	{"PR_SET_MM_MAP", "restores the heap, arguments and environment of a process",
	 "use a kernel with CONFIG_CHECKPOINT_RESTORE", look_mm_map},
	{"PAGEMAP_SCAN", "finds the pages that changed during a migration", "use Linux 6.7 or later",
	 look_pagemap_scan},
	{"userfaultfd", "tracks the pages that change during a migration",
	 "use Linux 5.11 or later, or allow the call in the container's seccomp profile", look_userfaultfd},
	{"user namespaces", "allow a restore to keep the real process numbers; otherwise they are translated",
	 "as root: sysctl user.max_user_namespaces=10000", look_user_namespaces},
	{NULL, NULL, NULL, NULL},
};
