/* System V objects: the ids of shared memory, who used an object last, who made it; POSIX timers that signal
 * one thread. */
#include <signal.h>
#include <stddef.h>
#include <sys/msg.h>
#include <sys/sem.h>
#include <sys/shm.h>

#include "scip/syscall/table.h"

#ifndef SHM_STAT_ANY
#define SHM_STAT_ANY 15
#endif

int enter_sysv_stat(struct call *call)
{
	return names_generation(call->process->names) ? SYSCALL_WANT_EXIT : SYSCALL_CONTINUE;
}

int enter_exit_only(struct call *call)
{
	return SYSCALL_WANT_EXIT;
}

/* An id in the first argument. */
static int replace_shm(struct call *call)
{
	int32_t id = (int32_t)call->args[0], real = names_shm_real(call->process->names, id);

	return real == id ? SYSCALL_CONTINUE : call_set_arg(call, 0, (uint64_t)(int64_t)real);
}

int enter_shmat(struct call *call)
{
	return replace_shm(call);
}

int exit_shmget(struct call *call)
{
	int32_t virtual;
	int r;

	if (call->rval < 0)
		return 0;
	r = names_shm_born(call->process->names, (int32_t)call->rval, call->process->keeper, &virtual);
	if (r < 0)
		return call_set_rval(call, r);
	return virtual == (int32_t)call->rval ? 0 : call_set_rval(call, virtual);
}

static int shm_command(const struct call *call)
{
	return (int)call->args[1] & 0xff; /* IPC_64 may be set */
}

int enter_shmctl(struct call *call)
{
	int r;

	switch (shm_command(call)) {
	case SHM_STAT:
	case SHM_STAT_ANY:
		return SYSCALL_WANT_EXIT; /* by index; the id is returned */
	case IPC_INFO:
	case SHM_INFO:
		return SYSCALL_CONTINUE;
	case IPC_STAT:
	case IPC_RMID:
		r = replace_shm(call);
		return r < 0 ? r : SYSCALL_WANT_EXIT;
	default:
		return replace_shm(call);
	}
}

int exit_shmctl(struct call *call)
{
	int command = shm_command(call);

	if (call->rval >= 0 && command == IPC_RMID)
		names_shm_release(call->process->names, (int32_t)call->args[0]);
	if (call->rval >= 0 && (command == SHM_STAT || command == SHM_STAT_ANY)) {
		int32_t virtual = names_shm_virtual(call->process->names, (int32_t)call->rval);
		int r = virtual >= 0 ? call_set_rval(call, virtual) : 0;

		if (r < 0)
			return r;
	}
	if (call->rval >= 0 && (command == IPC_STAT || command == SHM_STAT || command == SHM_STAT_ANY)) {
		call_virtual_at(call, call->args[2] + offsetof(struct shmid_ds, shm_cpid));
		call_virtual_at(call, call->args[2] + offsetof(struct shmid_ds, shm_lpid));
	}
	return 0;
}

int exit_msgctl(struct call *call)
{
	if (call->rval >= 0) {
		call_virtual_at(call, call->args[2] + offsetof(struct msqid_ds, msg_lspid));
		call_virtual_at(call, call->args[2] + offsetof(struct msqid_ds, msg_lrpid));
	}
	return 0;
}

int exit_semctl(struct call *call)
{
	return call->rval > 0 ? call_set_rval(call, call_virtual(call, (int32_t)call->rval)) : 0;
}

int enter_timer_create(struct call *call)
{
	struct sigevent event;
	int32_t real;
	/* sigev_notify_thread_id, which not every libc names */
	int32_t *tid = (int32_t *)((char *)&event + offsetof(struct sigevent, sigev_notify) + sizeof(int));

	if (call_read(call, call->args[1], &event, sizeof(event)) < 0 ||
	    event.sigev_notify != SIGEV_THREAD_ID)
		return SYSCALL_CONTINUE;
	real = *tid > 0 ? call_real(call, *tid) : *tid;
	if (real == *tid)
		return SYSCALL_CONTINUE;
	*tid = real;
	return call_replace(call, 1, &event, sizeof(event));
}
