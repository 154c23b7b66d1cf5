/* ioctl(): groups, sessions and numbers of terminals, owners of sockets, information about a pidfd. All
 * others pass. */
#include <stddef.h>
#include <sys/ioctl.h>

#include "scip/syscall/proc_path.h"

#define OWN_FIOSETOWN	0x8901u
#define OWN_SIOCSPGRP	0x8902u
#define OWN_FIOGETOWN	0x8903u
#define OWN_SIOCGPGRP	0x8904u
/* struct pidfd_info: mask, cgroupid, then pid, tgid, ppid (kernel 6.13) */
#define PIDFD_INFO_LOW	0xff0bu
#define PIDFD_INFO_PIDS 16u

int enter_ioctl(struct call *call)
{
	uint32_t request = (uint32_t)call->args[1];
	int32_t number, real;

	if (names_generation(call->process->names) == 0)
		return SYSCALL_CONTINUE;
	switch (request) {
	case TIOCSPGRP:
	case OWN_FIOSETOWN:
	case OWN_SIOCSPGRP:
		if (call_read(call, call->args[2], &number, sizeof(number)) < 0)
			return SYSCALL_CONTINUE;
		real = call_real(call, number);
		return real == number ? SYSCALL_CONTINUE : call_replace(call, 2, &real, sizeof(real));
	case TIOCGPGRP:
	case TIOCGSID:
	case TIOCGPTN:
	case OWN_FIOGETOWN:
	case OWN_SIOCGPGRP:
		return SYSCALL_WANT_EXIT;
	default:
		return (request & 0xffff) == PIDFD_INFO_LOW ? SYSCALL_WANT_EXIT : SYSCALL_CONTINUE;
	}
}

int exit_ioctl(struct call *call)
{
	uint32_t request = (uint32_t)call->args[1];
	int32_t number;

	if (call->rval < 0)
		return 0;
	switch (request) {
	case TIOCGPGRP:
	case TIOCGSID:
	case TIOCGPTN:
	case OWN_FIOGETOWN:
	case OWN_SIOCGPGRP:
		if (call_read(call, call->args[2], &number, sizeof(number)) < 0)
			return 0;
		number = request == TIOCGPTN ? pts_virtual(call, number)
					     : call_virtual(call, number); /* negative: a group */
		if (call_write(call, call->args[2], &number, sizeof(number)) < 0)
			return 0; /* another thread has unmapped the buffer */
		return 0;
	default:
		for (unsigned i = 0; i < 3 && (request & 0xffff) == PIDFD_INFO_LOW; i++)
			call_virtual_at(call, call->args[2] + PIDFD_INFO_PIDS + 4 * i);
		return 0;
	}
}
