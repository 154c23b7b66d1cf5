/*
 * Without a console the keeper reads the pty's master, so that the job never blocks on its terminal. The
 * kernel's buffer still has what a console did not read before it was killed.
 */
#include "scip/job/viewer.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "base/log.h"
#include "proto/message.h"

enum { LOOK_AGAIN_NS = 100000000 };

struct viewer {
	int sock;      /* -1: no console is there */
	bool draining; /* ... and the master is watched because of that */
	char *bytes;   /* what was read of it */
	size_t len;
};

/* ---- what is kept ---- */

static void viewer_keep(struct viewer *viewer, const char *bytes, size_t n)
{
	if (!viewer->bytes)
		viewer->bytes = malloc(VIEWER_BACKLOG);
	if (!viewer->bytes || !n)
		return;
	if (viewer->len + n > VIEWER_BACKLOG) {
		/* drops half at once, up to the end of a line: this is rare, and the rest is readable */
		size_t from = viewer->len > VIEWER_BACKLOG / 2 ? viewer->len - VIEWER_BACKLOG / 2 : 0;
		char *line = memchr(viewer->bytes + from, '\n', viewer->len - from);

		if (line)
			from = (size_t)(line + 1 - viewer->bytes);
		viewer->len -= from;
		memmove(viewer->bytes, viewer->bytes + from, viewer->len);
	}
	memcpy(viewer->bytes + viewer->len, bytes, n);
	viewer->len += n;
}

static void viewer_look_again(void *arg);

static void on_unviewed_output(void *arg, int fd)
{
	struct job *job = arg;
	char bytes[16384];
	ssize_t n = read(fd, bytes, sizeof(bytes));

	if (n > 0) {
		viewer_keep(job->viewer, bytes, (size_t)n);
		return;
	}
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	/* while a rollback replaces the slave's side the master always polls as hung up */
	loop_unwatch(&job->loop, fd);
	if (loop_timer_start(&job->loop, LOOK_AGAIN_NS, viewer_look_again, job) < 0)
		job->viewer->draining = false;
}

static void viewer_look_again(void *arg)
{
	struct job *job = arg;

	if (loop_watch(&job->loop, job->pty_master, on_unviewed_output, job) < 0)
		job->viewer->draining = false;
}

static void start_draining(struct job *job)
{
	if (job->pty_master < 0 || job->viewer->draining || !job->loop.base)
		return;
	if (loop_watch(&job->loop, job->pty_master, on_unviewed_output, job) < 0)
		log_warn("job %d: what it writes to its terminal cannot be kept", job->entry.root.n);
	else
		job->viewer->draining = true;
}

/* Returns a memfd with the bytes that were kept, which the caller owns; -1 if there are none. */
static int stop_draining(struct job *job)
{
	struct viewer *viewer = job->viewer;
	auto_close int fd = -1;

	if (viewer->draining) {
		loop_unwatch(&job->loop, job->pty_master);
		loop_timer_stop(&job->loop, viewer_look_again, job);
		viewer->draining = false;
	}
	if (!viewer->len)
		return -1;
	fd = memfd_create("pbeam-backlog", MFD_CLOEXEC);
	if (fd < 0 || io_pwrite_full(fd, viewer->bytes, viewer->len, 0) < 0)
		return -1;
	viewer->len = 0;
	return steal_fd(&fd);
}

/* ---- the console ---- */

static void viewer_close(struct job *job)
{
	struct viewer *viewer = job->viewer;

	if (viewer->sock < 0)
		return;
	loop_unwatch(&job->loop, viewer->sock);
	close(steal_fd(&viewer->sock));
}

static void on_console(void *arg, int fd)
{
	struct job *job = arg;
	char byte;

	if (recv(fd, &byte, 1, MSG_DONTWAIT) < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	viewer_close(job);
	start_draining(job);
}

void viewer_tell(struct job *job, Pbeam__KeeperEvent__Type type, int value, const char *text)
{
	Pbeam__KeeperEvent event = PBEAM__KEEPER_EVENT__INIT;

	if (!job->viewer || job->viewer->sock < 0)
		return;
	event.type = type;
	event.value = value;
	event.keeper = job->entry.keeper.n;
	event.text = (char *)(uintptr_t)text;
	if (event_send(job->viewer->sock, &event) == 0)
		return;
	log_info("the console has gone, or takes no events");
	viewer_close(job); /* it must not wait for an event that was lost */
	start_draining(job);
}

int viewer_replace(struct job *job, int *sock, int *backlog, struct err *err)
{
	auto_close int ours = -1, theirs = -1;
	int pair[2], r;

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
		return err_sys(err, "make a socket for the console");
	ours = pair[0];
	theirs = pair[1];
	viewer_tell(job, PBEAM__KEEPER_EVENT__TYPE__TAKEN, job->entry.root.n, "");
	viewer_close(job);
	r = loop_watch(&job->loop, ours, on_console, job);
	if (r < 0) {
		start_draining(job);
		return err_code(err, r, "watch the new console");
	}
	job->viewer->sock = steal_fd(&ours);
	*sock = steal_fd(&theirs);
	*backlog = stop_draining(job);
	return 0;
}

int viewer_open(struct job *job, int sock, struct err *err)
{
	job->viewer = calloc(1, sizeof(*job->viewer));
	if (!job->viewer)
		return err_code(err, -ENOMEM, "serve the console");
	job->viewer->sock = sock;
	return 0;
}

int viewer_watch(struct job *job, struct err *err)
{
	int r = job->viewer->sock < 0 ? 0 : loop_watch(&job->loop, job->viewer->sock, on_console, job);

	return r < 0 ? err_code(err, r, "watch the console") : 0;
}

void viewer_alone(struct job *job)
{
	if (job->viewer->sock < 0)
		start_draining(job);
}

int viewer_save(const struct job *job, int32_t *sock, ProtobufCBinaryData *backlog)
{
	*sock = job->viewer->sock;
	return message_bytes(backlog, job->viewer->bytes, job->viewer->len);
}

int viewer_adopt(struct job *job, int sock, const ProtobufCBinaryData *backlog, struct err *err)
{
	int r = viewer_open(job, sock, err);

	if (r < 0)
		return r;
	if (backlog->len <= VIEWER_BACKLOG)
		viewer_keep(job->viewer, (const char *)backlog->data, backlog->len);
	viewer_alone(job);
	return 0;
}
