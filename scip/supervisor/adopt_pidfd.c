/*
 * Pidfds of a child that has been replaced: each is exchanged for one of the new child under the same
 * descriptor. An epoll instance that watches it drops the watch before the exchange (a watch is of the
 * open file, which a duplicate may keep) and adds it again afterwards.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "scip/supervisor/control_request.h"
#include "scip/tracee/memory.h"
#include "scip/tracee/procfs.h"
#include "scip/tracee/remote.h"

enum { WATCHES_MAX = 32 };

struct watch {
	int epoll;
	struct epoll_event event;
};

struct exchange {
	struct tracee *tracee;
	pid_t old, new;
	int pidfd;			   /* the pidfd being exchanged */
	struct watch watches[WATCHES_MAX]; /* the epoll instances that watch that pidfd */
	int nwatches;
	struct err *err;
};

static int exchange_call(struct exchange *exchange, int64_t nr, const uint64_t args[6])
{
	int64_t ret;
	int r = remote_call(exchange->tracee, &ret, exchange->err, nr, args);

	return r < 0 ? r : (int)ret;
}

static char *pidfd_read_fdinfo(pid_t pid, int fd)
{
	char path[64], *text = NULL;

	snprintf(path, sizeof(path), "/proc/%d/fdinfo/%d", pid, fd);
	return io_slurp(AT_FDCWD, path, 1 << 20, &text, NULL) < 0 ? NULL : text;
}

/* Lists the watches of one epoll instance. */
static int find_watches(int fd, void *arg)
{
	struct exchange *exchange = arg;
	auto_free char *text = pidfd_read_fdinfo(exchange->tracee->process->pid, fd);

	for (const char *line = text; line && exchange->nwatches < WATCHES_MAX; line = strchr(line, '\n')) {
		struct watch watch = {.epoll = fd};
		uint64_t data;
		uint32_t events;
		int watched;

		line += *line == '\n';
		if (sscanf(line, "tfd: %d events: %" SCNx32 " data: %" SCNx64, &watched, &events, &data) !=
			    3 ||
		    watched != exchange->pidfd)
			continue;
		watch.event.events = events;
		watch.event.data.u64 = data;
		exchange->watches[exchange->nwatches++] = watch;
	}
	return 0;
}

static int watch_again(struct exchange *exchange, const struct watch *watch)
{
	struct process *process = exchange->tracee->process;
	int64_t page;
	int r = remote_call(exchange->tracee, &page, exchange->err, SYS_mmap,
			    remote_args(0, sizeof(watch->event), PROT_READ | PROT_WRITE,
					MAP_PRIVATE | MAP_ANONYMOUS, (uint64_t)-1, 0));

	if (r < 0 || page < 0)
		return r < 0 ? r : (int)page;
	r = memory_write(process, (struct taddr){(uint64_t)page}, &watch->event, sizeof(watch->event));
	if (r == 0)
		r = exchange_call(exchange, SYS_epoll_ctl,
				  remote_args((uint64_t)watch->epoll, EPOLL_CTL_ADD,
					      (uint64_t)exchange->pidfd, (uint64_t)page));
	(void)exchange_call(exchange, SYS_munmap, remote_args((uint64_t)page, sizeof(watch->event)));
	return r;
}

static int exchange_one(int fd, void *arg)
{
	struct exchange *exchange = arg;
	pid_t pid = exchange->tracee->process->pid;
	auto_free char *text = pidfd_read_fdinfo(pid, fd);
	const char *of = text ? procfs_field(text, "Pid") : NULL;
	const char *flags = text ? procfs_field(text, "flags") : NULL;
	unsigned long mode = flags ? strtoul(flags, NULL, 8) : 0;
	char dir[40];
	int made, r;

	if (!of || atoi(of) != exchange->old)
		return 0;
	exchange->pidfd = fd;
	exchange->nwatches = 0;
	snprintf(dir, sizeof(dir), "/proc/%d/fd", pid);
	r = procfs_each_number(dir, find_watches, exchange);
	if (r < 0)
		return r;
	made = exchange_call(exchange, SYS_pidfd_open,
			     remote_args((uint64_t)exchange->new, mode & O_NONBLOCK));
	if (made < 0)
		return made;
	for (int i = 0; i < exchange->nwatches; i++)
		(void)exchange_call(
			exchange, SYS_epoll_ctl,
			remote_args((uint64_t)exchange->watches[i].epoll, EPOLL_CTL_DEL, (uint64_t)fd));
	r = exchange_call(
		exchange, SYS_dup3,
		remote_args((uint64_t)made, (uint64_t)fd, mode & O_CLOEXEC ? (uint64_t)O_CLOEXEC : 0));
	(void)exchange_call(exchange, SYS_close, remote_args((uint64_t)made));
	for (int i = 0; i < exchange->nwatches && r >= 0; i++)
		r = watch_again(exchange, &exchange->watches[i]);
	return r < 0 ? r : 0;
}

int adopt_exchange_pidfds(struct tracee *tracee, pid_t old, pid_t new, struct err *err)
{
	struct exchange exchange = {.tracee = tracee, .old = old, .new = new, .err = err};
	char dir[40];

	snprintf(dir, sizeof(dir), "/proc/%d/fd", tracee->process->pid);
	return procfs_each_number(dir, exchange_one, &exchange);
}
