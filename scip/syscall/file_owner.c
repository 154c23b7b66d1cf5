/* fcntl(): the owner of a descriptor's signals, the holder of a lock, duplicates of signalfds. */
#include <fcntl.h>
#include <stddef.h>

#include "scip/syscall/call.h"

int enter_fcntl(struct call *call)
{
	struct f_owner_ex owner;
	int32_t number, real;

	if (names_generation(call->process->names) == 0)
		return SYSCALL_CONTINUE;
	switch ((int)call->args[1]) {
	case F_DUPFD:
	case F_DUPFD_CLOEXEC:
		return enter_dup(call);
	case F_SETOWN:
		number = (int32_t)call->args[2]; /* a negative number is a group; so is -1 */
		real = number == -1 ? number : call_real(call, number);
		return real == number ? SYSCALL_CONTINUE : call_set_arg(call, 2, (uint64_t)(int64_t)real);
	case F_SETOWN_EX:
		if (call_read(call, call->args[2], &owner, sizeof(owner)) < 0)
			return SYSCALL_CONTINUE;
		real = owner.pid > 0 ? call_real(call, owner.pid) : owner.pid;
		if (real == owner.pid)
			return SYSCALL_CONTINUE;
		owner.pid = real;
		return call_replace(call, 2, &owner, sizeof(owner));
	default:
		return SYSCALL_WANT_EXIT;
	}
}

int exit_fcntl(struct call *call)
{
	struct flock lock;
	int32_t virtual;

	switch ((int)call->args[1]) {
	case F_DUPFD:
	case F_DUPFD_CLOEXEC:
		return exit_dup(call);
	case F_GETOWN:
		/* a group is returned as a negative number; libc takes small ones for errors too */
		if (call->rval == 0 || (call->rval < 0 && call->rval >= -4095))
			return 0;
		virtual = call_virtual(call, (int32_t)call->rval);
		return virtual == (int32_t)call->rval ? 0 : call_set_rval(call, virtual);
	case F_GETOWN_EX:
		if (call->rval == 0)
			call_virtual_at(call, call->args[2] + offsetof(struct f_owner_ex, pid));
		return 0;
	case F_GETLK:
	case F_OFD_GETLK:
		if (call->rval == 0 && call_read(call, call->args[2], &lock, sizeof(lock)) == 0 &&
		    lock.l_type != F_UNLCK)
			call_virtual_at(call, call->args[2] + offsetof(struct flock, l_pid));
		return 0;
	default:
		return 0;
	}
}
