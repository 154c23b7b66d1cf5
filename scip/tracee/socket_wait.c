#include "scip/tracee/socket_wait.h"

#include <errno.h>
#include <sys/pidfd.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/io.h"

bool socket_wait_timeout(const struct process *process, int fd, enum timeout_unit unit, uint64_t *ns)
{
	auto_close int pidfd = pidfd_open(process->pid, 0);
	auto_close int own = pidfd < 0 ? -1 : pidfd_getfd(pidfd, fd, 0);
	const int option = unit == TIMEOUT_UNIT_RECEIVE ? SO_RCVTIMEO : SO_SNDTIMEO;
	struct timeval value;
	socklen_t size = sizeof(value);

	if (own < 0 || getsockopt(own, SOL_SOCKET, option, &value, &size) < 0)
		return false;
	*ns = (uint64_t)value.tv_sec * 1000000000u + (uint64_t)value.tv_usec * 1000u;
	return *ns > 0;
}

/* The timeout that the thread's continued call has from its socket, or NULL. */
static const struct syscall_timeout *waits(const struct tracee *tracee)
{
	const struct tracee_pending *p = &tracee->pending;
	const struct syscall_timeout *where;

	if (!p->active || !p->timed)
		return NULL;
	where = syscall_timeout(p->number, p->args);
	return where && syscall_timeout_is_of_socket(where) ? where : NULL;
}

uint64_t socket_wait_deadline(struct process *process)
{
	uint64_t first = 0;
	bool any = false;

	if (!process->socket_waits)
		return 0;
	for (const struct tracee *t = process->tracees; t; t = t->next) {
		if (!waits(t))
			continue;
		any = true;
		if (t->stop == TRACEE_RUNNING && !t->pending.expiring &&
		    (!first || t->pending.deadline_ns < first))
			first = t->pending.deadline_ns;
	}
	process->socket_waits = any;
	return first;
}

void socket_wait_expire(struct process *process)
{
	uint64_t now = io_now_ns(CLOCK_MONOTONIC);

	if (!process->socket_waits)
		return;
	for (struct tracee *t = process->tracees; t; t = t->next)
		if (waits(t) && t->stop == TRACEE_RUNNING && t->pending.deadline_ns <= now)
			t->pending.expiring = ptrace(PTRACE_INTERRUPT, t->tid, NULL, NULL) == 0;
}

bool socket_wait_ended(const struct tracee *tracee, struct user_regs_struct *regs)
{
	const struct tracee_pending *p = &tracee->pending;
	const struct syscall_timeout *where = waits(tracee);

	if (!where || io_now_ns(CLOCK_MONOTONIC) < p->deadline_ns)
		return false;
	regs->rip = p->rip;
	regs->orig_rax = UINT64_MAX;
	if (p->done)
		regs->rax = p->done;
	else
		regs->rax = (uint64_t)(int64_t)(where->unit == TIMEOUT_UNIT_CONNECT ? -EINPROGRESS : -EAGAIN);
	return true;
}
