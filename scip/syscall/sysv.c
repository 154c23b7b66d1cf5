/* Who used a System V object last, who made it; POSIX timers that signal one thread. */
#include <signal.h>
#include <stddef.h>
#include <sys/msg.h>
#include <sys/sem.h>
#include <sys/shm.h>

#include "scip/syscall/table.h"

int enter_sysv_stat(struct call *call)
{
	return names_generation(call->process->names) ? SYSCALL_WANT_EXIT : SYSCALL_CONTINUE;
}

int exit_shmctl(struct call *call)
{
	if (call->rval >= 0) {
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
