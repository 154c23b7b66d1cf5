/*
 * System V objects: their ids, and the processes that made or last used them; POSIX timers that signal
 * a thread.
 *
 * The objects that a job makes are recorded at that moment and are saved with the job. The kernel does
 * not tell later which process has made a set of semaphores or a queue.
 */
#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <sys/msg.h>
#include <sys/sem.h>
#include <sys/shm.h>

#include "base/log.h"
#include "namespace/record.h"
#include "scip/syscall/call.h"

/* Commands that not every libc names: by index, by index without permission, and about all objects. */
enum { SHM_BY_INDEX_ANY = 15, SEM_BY_INDEX_ANY = 20, MSG_BY_INDEX_ANY = 13 };
static const struct {
	int stat, stat_any, info;
} commands[NAMES_IPC_KINDS] = {
	[NAMES_IPC_SHM] = {SHM_STAT, SHM_BY_INDEX_ANY, SHM_INFO},
	[NAMES_IPC_SEM] = {SEM_STAT, SEM_BY_INDEX_ANY, SEM_INFO},
	[NAMES_IPC_MSG] = {MSG_STAT, MSG_BY_INDEX_ANY, MSG_INFO},
};

int enter_exit_only(struct call *call)
{
	return SYSCALL_WANT_EXIT;
}

/* ---- made or found ---- */

static int ipc_find_key(enum names_ipc kind, key_t key)
{
	return kind == NAMES_IPC_SHM   ? shmget(key, 0, 0)
	       : kind == NAMES_IPC_SEM ? semget(key, 0, 0)
				       : msgget(key, 0);
}

/* keep[0]: the call makes it, if it succeeds. */
static int enter_get(struct call *call, enum names_ipc kind, int flags)
{
	key_t key = (key_t)call->args[0];

	call->keep[0] = key == IPC_PRIVATE ||
			((flags & IPC_CREAT) &&
			 ((flags & IPC_EXCL) || (ipc_find_key(kind, key) < 0 && errno == ENOENT)));
	return SYSCALL_WANT_EXIT;
}

int enter_shmget(struct call *call)
{
	return enter_get(call, NAMES_IPC_SHM, (int)call->args[2]);
}

int enter_semget(struct call *call)
{
	return enter_get(call, NAMES_IPC_SEM, (int)call->args[2]);
}

int enter_msgget(struct call *call)
{
	return enter_get(call, NAMES_IPC_MSG, (int)call->args[1]);
}

static int exit_get(struct call *call, enum names_ipc kind)
{
	struct process *process = call->process;
	int32_t real = (int32_t)call->rval, virtual;
	struct err err = ERR_INIT;
	int r;

	if (call->rval < 0)
		return 0;
	if (call->keep[0]) {
		r = record_ipc_add(process->keeper, kind, real);
		if (r < 0)
			log_warn("process %d: record System V object %d: %s; it will not be saved",
				 process->vpid.n, real, strerror(-r));
	}
	r = names_ipc_born(process->names, kind, real, process->keeper, &virtual);
	if (r < 0)
		return call_set_rval(call, r);
	if (virtual == real)
		return 0;
	if (!process->diverged && syscall_filter_inject(call->tracee, &err) < 0) {
		log_warn("process %d: System V object %d keeps its real id: %s", process->vpid.n, real,
			 err.text);
		names_ipc_release(process->names, kind, virtual);
		return 0;
	}
	return call_set_rval(call, virtual);
}

int exit_shmget(struct call *call)
{
	return exit_get(call, NAMES_IPC_SHM);
}

int exit_semget(struct call *call)
{
	return exit_get(call, NAMES_IPC_SEM);
}

int exit_msgget(struct call *call)
{
	return exit_get(call, NAMES_IPC_MSG);
}

/* ---- used ---- */

/* An id in the first argument. */
static int replace_id(struct call *call, enum names_ipc kind)
{
	int32_t id = (int32_t)call->args[0], real = names_ipc_real(call->process->names, kind, id);

	return real == id ? SYSCALL_CONTINUE : call_set_arg(call, 0, (uint64_t)(int64_t)real);
}

int enter_shm_use(struct call *call)
{
	return replace_id(call, NAMES_IPC_SHM);
}

int enter_sem_use(struct call *call)
{
	return replace_id(call, NAMES_IPC_SEM);
}

int enter_msg_use(struct call *call)
{
	return replace_id(call, NAMES_IPC_MSG);
}

/* ---- controlled ---- */

static int command_of(const struct call *call, enum names_ipc kind)
{
	return (int)call->args[kind == NAMES_IPC_SEM ? 2 : 1] & 0xff; /* IPC_64 may be set */
}

static bool is_by_index(int command, enum names_ipc kind)
{
	return command == commands[kind].stat || command == commands[kind].stat_any;
}

static int enter_control(struct call *call, enum names_ipc kind)
{
	int command = command_of(call, kind), r;

	if (command == IPC_INFO || command == commands[kind].info)
		return SYSCALL_CONTINUE;
	if (is_by_index(command, kind))
		return SYSCALL_WANT_EXIT; /* the id is returned */
	r = replace_id(call, kind);
	if (r < 0)
		return r;
	return command == IPC_STAT || command == IPC_RMID || (kind == NAMES_IPC_SEM && command == GETPID)
		       ? SYSCALL_WANT_EXIT
		       : r;
}

int enter_shmctl(struct call *call)
{
	return enter_control(call, NAMES_IPC_SHM);
}

int enter_semctl(struct call *call)
{
	return enter_control(call, NAMES_IPC_SEM);
}

int enter_msgctl(struct call *call)
{
	return enter_control(call, NAMES_IPC_MSG);
}

static int exit_control(struct call *call, enum names_ipc kind)
{
	int command = command_of(call, kind);
	int32_t virtual;

	if (call->rval < 0)
		return 0;
	if (command == IPC_RMID)
		names_ipc_release(call->process->names, kind, (int32_t)call->args[0]);
	if (!is_by_index(command, kind))
		return 0;
	virtual = names_ipc_virtual(call->process->names, kind, (int32_t)call->rval);
	return virtual >= 0 ? call_set_rval(call, virtual) : 0;
}

/* IPC_STAT and its variants have written the structure. */
static bool has_status(const struct call *call, enum names_ipc kind)
{
	int command = command_of(call, kind);

	return call->rval >= 0 && (command == IPC_STAT || is_by_index(command, kind));
}

int exit_shmctl(struct call *call)
{
	if (has_status(call, NAMES_IPC_SHM)) {
		call_virtual_at(call, call->args[2] + offsetof(struct shmid_ds, shm_cpid));
		call_virtual_at(call, call->args[2] + offsetof(struct shmid_ds, shm_lpid));
	}
	return exit_control(call, NAMES_IPC_SHM);
}

int exit_msgctl(struct call *call)
{
	if (has_status(call, NAMES_IPC_MSG)) {
		call_virtual_at(call, call->args[2] + offsetof(struct msqid_ds, msg_lspid));
		call_virtual_at(call, call->args[2] + offsetof(struct msqid_ds, msg_lrpid));
	}
	return exit_control(call, NAMES_IPC_MSG);
}

int exit_semctl(struct call *call)
{
	if (command_of(call, NAMES_IPC_SEM) == GETPID)
		return call->rval > 0 ? call_set_rval(call, call_virtual(call, (int32_t)call->rval)) : 0;
	return exit_control(call, NAMES_IPC_SEM);
}

int enter_timer_create(struct call *call)
{
	struct sigevent event;
	int32_t real;
	/* sigev_notify_thread_id, which not every libc names */
	int32_t *tid = (int32_t *)((char *)&event + offsetof(struct sigevent, sigev_notify) + sizeof(int));

	int r = call_enter_regular(call);

	if (r < 0 || !call->args[1] || call_read(call, call->args[1], &event, sizeof(event)) < 0 ||
	    event.sigev_notify != SIGEV_THREAD_ID)
		return r;
	real = *tid > 0 ? call_real(call, *tid) : *tid;
	if (real == *tid)
		return r;
	*tid = real;
	return call_replace(call, 1, &event, sizeof(event));
}
