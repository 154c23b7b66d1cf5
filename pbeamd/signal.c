/*
 * What a process of another host asks of one of this host: a signal for it, or a number. The daemon acts in
 * its name. The kernel lets nobody queue a signal as if by kill(2) in another's name, so that it arrives as
 * one of sigqueue(3), with the sender's id and user.
 */
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "pbeamd/server.h"

static void fill_info(const Pbeam__RemoteSignal *wish, siginfo_t *info)
{
	memset(info, 0, sizeof(*info));
	if (wish->siginfo.len == sizeof(*info))
		memcpy(info, wish->siginfo.data, sizeof(*info));
	info->si_signo = wish->signal;
	/* nobody may say what the kernel or kill() says */
	if (info->si_code >= 0 || info->si_code == SI_TKILL) {
		info->si_code = SI_QUEUE;
		info->si_pid = wish->from;
		info->si_uid = getuid();
	}
}

static int send_signal(struct names *names, const Pbeam__RemoteSignal *wish, pid_t pid)
{
	siginfo_t info;
	long r;

	fill_info(wish, &info);
	if (wish->group)
		r = kill(-pid, wish->signal);
	else if (wish->signal == 0)
		r = kill(wish->vtid > 0 ? names_real(names, (struct vpid){wish->vtid}).n : pid, 0);
	else if (wish->vtid > 0)
		r = syscall(SYS_rt_tgsigqueueinfo, pid, names_real(names, (struct vpid){wish->vtid}).n,
			    wish->signal, &info);
	else
		r = syscall(SYS_rt_sigqueueinfo, pid, wish->signal, &info);
	return r < 0 ? -errno : 0;
}

/* A group's number may have outlived its process; a process is to be one of the name space. */
static int find_process(struct names *names, const Pbeam__RemoteSignal *wish, pid_t *pid)
{
	struct name_process process;
	int r = names_process_get(names, (struct vpid){wish->target->vpid}, &process);

	if (r == 0 && process.rpid.n <= 0)
		r = -ESRCH;
	*pid = r == 0 ? process.rpid.n : names_real(names, (struct vpid){wish->target->vpid}).n;
	if (r < 0 && wish->group && *pid > 1 && *pid != NAMES_NOBODY)
		r = 0;
	return r < 0 ? -ESRCH : 0;
}

static int carry_out(struct names *names, const Pbeam__RemoteSignal *wish, int64_t *value)
{
	pid_t pid;
	int r = find_process(names, wish, &pid);

	if (r < 0)
		return r;
	switch (wish->what) {
	case PBEAM__REMOTE_SIGNAL__WHAT__SIGNAL:
		if (wish->signal < 0 || wish->signal > SIGRTMAX)
			return -EINVAL;
		return send_signal(names, wish, pid);
	case PBEAM__REMOTE_SIGNAL__WHAT__GETPGID:
		r = getpgid(pid);
		*value = r < 0 ? 0 : names_virtual(names, (struct rpid){r}).n;
		return r < 0 ? -errno : 0;
	case PBEAM__REMOTE_SIGNAL__WHAT__GETSID:
		r = getsid(pid);
		*value = r < 0 ? 0 : names_virtual(names, (struct rpid){r}).n;
		return r < 0 ? -errno : 0;
	case PBEAM__REMOTE_SIGNAL__WHAT__GETPRIORITY:
		*value = syscall(SYS_getpriority, PRIO_PROCESS, pid); /* 20 - nice: never negative */
		return *value < 0 ? -errno : 0;
	case PBEAM__REMOTE_SIGNAL__WHAT__SETPRIORITY:
		return setpriority(PRIO_PROCESS, (id_t)pid, wish->nice) < 0 ? -errno : 0;
	case PBEAM__REMOTE_SIGNAL__WHAT__GETSCHEDULER:
		*value = sched_getscheduler(pid);
		return *value < 0 ? -errno : 0;
	case _PBEAM__REMOTE_SIGNAL__WHAT_IS_INT_SIZE:
	default:
		return -ENOSYS;
	}
}

int handle_signal(struct connection *connection, const ProtobufCMessage *message, struct err *err)
{
	const Pbeam__RemoteSignal *wish = (const Pbeam__RemoteSignal *)message;
	Pbeam__Done done = PBEAM__DONE__INIT;
	int r;

	if (!wish->target || wish->target->vpid <= 0)
		return err_set(err, -EINVAL, "the request names no process");
	r = carry_out(connection->server->names, wish, &done.value);
	if (r < 0)
		return err_code(err, r, "vpid %d", wish->target->vpid);
	connection_reply(connection, &done.base);
	return 0;
}
