/*
 * Requests of a process on another host about one of this host: a signal for it, or another call. The daemon
 * makes the call for it. The kernel lets no process queue a signal of kill(2) in another's name, so it
 * arrives as one of sigqueue(3), with the sender's id and user.
 */
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/bytes.h"
#include "pbeamd/services/process_requests.h"
#include "pbeamd/transport/connection.h"
#include "pbeamd/transport/server.h"
#include "syscalls/syscall_table.h"

int signal_process(pid_t pid, pid_t tid, int signal, siginfo_t *info)
{
	long r;

	if (signal == 0)
		r = kill(tid ? tid : pid, 0);
	else if (tid)
		r = syscall(SYS_rt_tgsigqueueinfo, pid, tid, signal, info);
	else
		r = syscall(SYS_rt_sigqueueinfo, pid, signal, info);
	return r < 0 ? -errno : 0;
}

void signal_info(int signal, int32_t from, siginfo_t *info)
{
	memset(info, 0, sizeof(*info));
	info->si_signo = signal;
	info->si_code = SI_QUEUE;
	info->si_pid = from;
	info->si_uid = getuid();
}

static int signal_send(struct names *names, const Pbeam__RemoteSignal *wish, pid_t pid)
{
	siginfo_t info;

	if (wish->signal < 0 || wish->signal > SIGRTMAX)
		return -EINVAL;
	signal_info(wish->signal, wish->from, &info);
	if (wish->siginfo.len == sizeof(info)) {
		siginfo_t own;

		memcpy(&own, wish->siginfo.data, sizeof(own));
		own.si_signo = wish->signal;
		/* codes of the kernel and of kill() may not be sent */
		if (own.si_code < 0 && own.si_code != SI_TKILL)
			info = own;
	}
	return signal_process(pid, wish->vtid > 0 ? names_real(names, (struct vpid){wish->vtid}).n : 0,
			      wish->signal, &info);
}

/* Only processes of the name space are allowed. */
static int signal_find_process(struct names *names, const Pbeam__Target *target, pid_t *pid, struct err *err)
{
	struct name_process process;

	if (!target || target->vpid <= 0)
		return err_set(err, -EINVAL, "the request names no process");
	if (names_process_get(names, (struct vpid){target->vpid}, &process) < 0 || process.rpid.n <= 0)
		return err_code(err, -ESRCH, "vpid %d", target->vpid);
	*pid = process.rpid.n;
	return 0;
}

int handle_signal(struct connection *connection, const ProtobufCMessage *message, struct err *err)
{
	const Pbeam__RemoteSignal *wish = (const Pbeam__RemoteSignal *)message;
	Pbeam__Done done = PBEAM__DONE__INIT;
	pid_t pid;
	int r = signal_find_process(connection->server->names, wish->target, &pid, err);

	if (r < 0)
		return r;
	r = signal_send(connection->server->names, wish, pid);
	if (r < 0)
		return err_code(err, r, "vpid %d", wish->target->vpid);
	connection_reply(connection, &done.base);
	return 0;
}

/* ---- other calls ---- */

/* The call with its numbers, its process and its memory in place. */
static int signal_make_call(const struct syscall_row *row, const Pbeam__RemoteCall *wish, pid_t pid,
			    Pbeam__Done *done)
{
	static uint8_t in[SYSCALL_REMOTE_BYTES], out[SYSCALL_REMOTE_BYTES]; /* static: large, used at once */
	uint64_t args[6] = {0};
	size_t room;
	long r;

	for (size_t i = 0; i < 6 && i < wish->n_args; i++)
		args[i] = (uint64_t)wish->args[i];
	room = syscall_remote_out_bytes(row, args);
	if (!syscall_remote_possible(row, args))
		return -EINVAL;
	if ((wish->room && wish->room != room) ||
	    (wish->has_data && wish->data.len != syscall_remote_in_bytes(row, args)))
		return -EINVAL;
	memset(in, 0, sizeof(in));
	memset(out, 0, sizeof(out));
	if (wish->has_data && wish->data.len)
		bytes_copy(in, wish->data.data, wish->data.len);
	args[syscall_remote_process(row)] = (uint64_t)pid;
	if (row->remote.in)
		args[row->remote.in] = wish->has_data ? (uintptr_t)in : 0;
	if (row->remote.out)
		args[row->remote.out] = wish->room ? (uintptr_t)out : 0;
	r = syscall(wish->number, args[0], args[1], args[2], args[3], args[4], args[5]);
	if (r < 0)
		return -errno;
	done->value = r;
	done->data.data = out;
	done->data.len = wish->room;
	return 0;
}

int handle_call(struct connection *connection, const ProtobufCMessage *message, struct err *err)
{
	const Pbeam__RemoteCall *wish = (const Pbeam__RemoteCall *)message;
	const struct syscall_row *row = syscall_row(wish->number);
	struct names *names = connection->server->names;
	Pbeam__Done done = PBEAM__DONE__INIT;
	pid_t pid;
	int r = signal_find_process(names, wish->target, &pid, err);

	if (r < 0)
		return r;
	if (!row || !row->remote.when.op)
		return err_set(err, -ENOSYS, "call %d cannot be made for a process of another host",
			       wish->number);
	r = signal_make_call(row, wish, pid, &done);
	if (r < 0)
		return err_code(err, r, "vpid %d", wish->target->vpid);
	if (row->ret == KIND_RET_VPID)
		done.value = names_virtual(names, (struct rpid){(int32_t)done.value}).n;
	connection_reply(connection, &done.base);
	return 0;
}
