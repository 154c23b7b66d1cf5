/*
 * While no console is there the keeper reads the pty's master, so that the job never blocks on a terminal
 * that nobody looks at. The kernel's own buffer comes first: what a console did not read before it died is
 * read here.
 */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "base/log.h"
#include "scip/job/requests.h"

enum { LOOK_AGAIN_NS = 100000000 };

static void keep(struct backlog *backlog, const char *bytes, size_t n)
{
	if (!backlog->bytes)
		backlog->bytes = malloc(REQUESTS_BACKLOG);
	if (!backlog->bytes)
		return;
	if (backlog->len + n > REQUESTS_BACKLOG) {
		/* half goes at once, at a line's end, so that this is rare and what stays is readable */
		size_t from = backlog->len > REQUESTS_BACKLOG / 2 ? backlog->len - REQUESTS_BACKLOG / 2 : 0;
		char *line = memchr(backlog->bytes + from, '\n', backlog->len - from);

		if (line)
			from = (size_t)(line + 1 - backlog->bytes);
		backlog->len -= from;
		memmove(backlog->bytes, backlog->bytes + from, backlog->len);
	}
	memcpy(backlog->bytes + backlog->len, bytes, n);
	backlog->len += n;
}

static void look_again(struct keeper *keeper, void *arg);

static void on_output(struct keeper *keeper, int fd, short revents, void *arg)
{
	struct requests *requests = keeper->requests;
	char bytes[16384];
	ssize_t n = read(fd, bytes, sizeof(bytes));

	if (n > 0) {
		keep(&requests->backlog, bytes, (size_t)n);
		return;
	}
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	/* no other side while a rollback replaces it: it would poll as hung up all the time */
	keeper_unwatch(keeper, fd);
	if (keeper_alarm(keeper, io_now_ns(CLOCK_MONOTONIC) + LOOK_AGAIN_NS, look_again, NULL) < 0)
		requests->draining = false;
}

static void look_again(struct keeper *keeper, void *arg)
{
	struct requests *requests = keeper->requests;

	if (keeper_watch(keeper, keeper->pty_master, POLLIN, on_output, NULL) < 0)
		requests->draining = false;
}

void backlog_start(struct keeper *keeper)
{
	struct requests *requests = keeper->requests;

	if (keeper->pty_master < 0 || requests->draining)
		return;
	if (keeper_watch(keeper, keeper->pty_master, POLLIN, on_output, NULL) < 0)
		log_warn("job %d: what it writes to its terminal cannot be kept", keeper->job.root.n);
	else
		requests->draining = true;
}

int backlog_take(struct keeper *keeper)
{
	struct requests *requests = keeper->requests;
	struct backlog *backlog = &requests->backlog;
	auto_close int fd = -1;

	if (requests->draining) {
		keeper_unwatch(keeper, keeper->pty_master);
		keeper_alarm_cancel(keeper, look_again, NULL);
		requests->draining = false;
	}
	if (!backlog->len)
		return -1;
	fd = memfd_create("pbeam-backlog", MFD_CLOEXEC);
	if (fd < 0 || io_pwrite_full(fd, backlog->bytes, backlog->len, 0) < 0)
		return -1;
	backlog->len = 0;
	return steal_fd(&fd);
}
