/*
 * What the filters of a cluster trap beside the born and the restored one: calls whose names may be of
 * another host although nothing has diverged here, and those that carry transport addresses.
 */
#include <sys/syscall.h>

#include "scip/syscall/table.h"

#define ALWAYS                                                                                               \
	{                                                                                                    \
		.op = COND_ALWAYS                                                                            \
	}
#define NOT_ZERO(argument)                                                                                   \
	{                                                                                                    \
		.op = COND_NOT, .arg = (argument), .mask = ~0u                                               \
	}

#define NEVER                                                                                                \
	{                                                                                                    \
		.op = COND_NEVER                                                                             \
	}

/* `restored`: in place of the restored filter's condition; empty: as that one says. */
static const struct {
	int64_t nr;
	struct syscall_condition born, restored;
} rows[] = {
	{SYS_getpgid, NOT_ZERO(0), NEVER},
	{SYS_getsid, NOT_ZERO(0), NEVER},
	{SYS_getpriority, NOT_ZERO(1), NEVER},
	{SYS_setpriority, NOT_ZERO(1), NEVER},
	{SYS_ioprio_get, NOT_ZERO(1), NEVER},
	{SYS_ioprio_set, NOT_ZERO(1), NEVER},
	{SYS_sched_getscheduler, NOT_ZERO(0), NEVER},
	{SYS_sched_setscheduler, NOT_ZERO(0), NEVER},
	{SYS_sched_getparam, NOT_ZERO(0), NEVER},
	{SYS_sched_setparam, NOT_ZERO(0), NEVER},
	{SYS_sched_rr_get_interval, NOT_ZERO(0), NEVER},
	{SYS_sched_getaffinity, NOT_ZERO(0), NEVER},
	{SYS_sched_setaffinity, NOT_ZERO(0), NEVER},
	{SYS_sched_getattr, NOT_ZERO(0), NEVER},
	{SYS_sched_setattr, NOT_ZERO(0), NEVER},
	{SYS_prlimit64, NOT_ZERO(0), NEVER},
	/* one's own group may have members on other hosts */
	{SYS_kill, ALWAYS, ALWAYS},
	{SYS_tkill, ALWAYS, NEVER},
	{SYS_tgkill, ALWAYS, NEVER},
	{SYS_rt_sigqueueinfo, ALWAYS, NEVER},
	{SYS_rt_tgsigqueueinfo, ALWAYS, NEVER},
	{SYS_pidfd_open, ALWAYS, NEVER},
	{SYS_getsockname, ALWAYS, ALWAYS},
	{SYS_getpeername, ALWAYS, ALWAYS},
	{SYS_connect, ALWAYS, ALWAYS},
	{SYS_bind, ALWAYS, ALWAYS},
	/* who does not want the caller's address accepts untrapped, unless the listener has moved */
	{SYS_accept, NOT_ZERO(1), ALWAYS},
	{SYS_accept4, NOT_ZERO(1), ALWAYS},
};

/* Nobody pays for send(), recv(), read() and write(); whether a message has an address is not to be seen. */
const struct syscall_condition *syscall_datagram_condition(uint32_t nr, bool talks)
{
	static const struct syscall_condition always = ALWAYS, never = NEVER, to = NOT_ZERO(4);

	switch (nr) {
	case SYS_recvfrom:
		return &to;
	case SYS_recvmsg:
	case SYS_recvmmsg:
		return &always;
	case SYS_sendto:
		return talks ? &to : &never;
	case SYS_sendmsg:
	case SYS_sendmmsg:
		return talks ? &always : &never;
	default:
		return &never;
	}
}

const struct syscall_condition *syscall_cluster_condition(uint32_t nr, enum syscall_filter which)
{
	if (which != SYSCALL_FILTER_CLUSTER && which < SYSCALL_FILTER_DIVERGED)
		return NULL;
	if (which >= SYSCALL_FILTER_MOVED && (nr == SYS_sendto || nr == SYS_recvfrom))
		return syscall_datagram_condition(nr, true);
	for (unsigned i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		if (rows[i].nr != nr)
			continue;
		if (which == SYSCALL_FILTER_CLUSTER)
			return &rows[i].born;
		return rows[i].restored.op == COND_NEVER ? NULL : &rows[i].restored;
	}
	return NULL;
}

enum syscall_filter syscall_filter_born(struct names *names)
{
	return names_cluster(names, NULL) ? SYSCALL_FILTER_CLUSTER : SYSCALL_FILTER_BORN;
}

enum syscall_filter syscall_filter_diverged(struct names *names)
{
	return names_cluster(names, NULL) ? SYSCALL_FILTER_DIVERGED : SYSCALL_FILTER_RESTORED;
}

enum syscall_filter syscall_filter_restored(struct names *names)
{
	return names_cluster(names, NULL) ? SYSCALL_FILTER_MOVED : SYSCALL_FILTER_RESTORED;
}
