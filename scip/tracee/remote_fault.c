#include "scip/tracee/remote_fault.h"

#include <errno.h>
#include <seccomp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/fault.h"

#ifdef PBEAM_FAULTS
/* The calls that can fail for lack of something, and how. */
static const struct {
	const char *name;
	int error;
} failures[] = {
	{"openat", ENOMEM},
	{"mmap", ENOMEM},
	{"mremap", ENOMEM},
	{"mprotect", ENOMEM},
	{"pkey_mprotect", ENOMEM},
	{"madvise", EAGAIN},
	{"mlock2", EAGAIN},
	{"mlockall", ENOMEM},
	{"mbind", ENOMEM},
	{"brk", ENOMEM},
	{"read", EIO},
	{"pread64", EIO},
	{"pwrite64", ENOSPC},
	{"pwritev", ENOSPC},
	{"clone", EAGAIN},
	{"execve", ENOMEM},
	{"chdir", EIO},
	{"pidfd_open", EMFILE},
	{"pidfd_getfd", EMFILE},
	{"socket", EMFILE},
	{"memfd_create", EMFILE},
	{"userfaultfd", EMFILE},
	{"epoll_ctl", ENOMEM},
	{"seccomp", ENOMEM},
	{"timer_create", EAGAIN},
	{"shmat", ENOMEM},
	{"setresuid", EAGAIN},
};

static int failure_of(const struct inject_call *call, const char *name)
{
	if (name && !(call->flags & INJECT_CALL_ANY))
		for (size_t i = 0; i < sizeof(failures) / sizeof(failures[0]); i++)
			if (!strcmp(failures[i].name, name))
				return failures[i].error;
	return 0;
}

size_t remote_fault_pick(struct inject_call *calls, size_t n)
{
	if (!getenv("PBEAM_FAULT"))
		return n;
	for (size_t i = 0; i < n; i++) {
		auto_free char *name = seccomp_syscall_resolve_num_arch(SCMP_ARCH_X86_64, (int)calls[i].nr);
		const int error = failure_of(&calls[i], name);
		char detail[64];

		snprintf(detail, sizeof(detail), " %s %s", name ? name : "?",
			 error ? strerrorname_np(error) : "");
		if (error && fault_reached("remote-call", detail)) {
			calls[i].ret = -error;
			return i;
		}
	}
	return n;
}
#else
size_t remote_fault_pick(struct inject_call *calls, size_t n)
{
	return n;
}
#endif
