/*
 * A seccomp filter for the process that reads bytes from strangers: it may use the descriptors that it has,
 * memory and clocks. Other calls fail with EPERM.
 */
#include <errno.h>
#include <seccomp.h>
#include <sys/prctl.h>

#include "channel/tls.h"

#if defined(__SANITIZE_ADDRESS__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SANITIZED 1
#endif
#endif

static const int allowed[] = {
	SCMP_SYS(read),		  SCMP_SYS(write),	     SCMP_SYS(recvfrom), SCMP_SYS(sendto),
	SCMP_SYS(recvmsg),	  SCMP_SYS(sendmsg),	     SCMP_SYS(poll),	 SCMP_SYS(ppoll),
	SCMP_SYS(close),	  SCMP_SYS(shutdown),	     SCMP_SYS(brk),	 SCMP_SYS(munmap),
	SCMP_SYS(mremap),	  SCMP_SYS(madvise),	     SCMP_SYS(futex),	 SCMP_SYS(clock_gettime),
	SCMP_SYS(gettimeofday),	  SCMP_SYS(getrandom),	     SCMP_SYS(getpid),	 SCMP_SYS(rt_sigreturn),
	SCMP_SYS(rt_sigprocmask), SCMP_SYS(restart_syscall), SCMP_SYS(exit),	 SCMP_SYS(exit_group),
	SCMP_SYS(time),
};

void sandbox_enter(void)
{
#ifndef SANITIZED
	scmp_filter_ctx filter = seccomp_init(SCMP_ACT_ERRNO(EPERM));
	int r = 0;

	if (!filter)
		return;
	for (size_t i = 0; i < sizeof(allowed) / sizeof(allowed[0]); i++)
		r |= seccomp_rule_add(filter, SCMP_ACT_ALLOW, allowed[i], 0);
	/* memory, but not executable memory */
	r |= seccomp_rule_add(filter, SCMP_ACT_ALLOW, SCMP_SYS(mmap), 1, SCMP_A2(SCMP_CMP_MASKED_EQ, 4, 0));
	r |= seccomp_rule_add(filter, SCMP_ACT_ALLOW, SCMP_SYS(mprotect), 1,
			      SCMP_A2(SCMP_CMP_MASKED_EQ, 4, 0));
	if (r == 0 && prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0)
		r = seccomp_load(filter);
	seccomp_release(filter);
#else
	(void)allowed;
#endif
}
