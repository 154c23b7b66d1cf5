/*
 * process_vm_readv and process_vm_writev respect the protection of pages. /proc/PID/mem uses
 * FOLL_FORCE: it reads PROT_NONE pages and writes private read-only ones. The tracer of a process of
 * the same user may use both.
 *
 * A leader that has called pthread_exit() is a zombie without memory while its threads live. Both ways
 * then fail with ESRCH (or 0 bytes) for the process's number, but accept the number of any other
 * thread.
 */
#include "scip/tracee/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/uio.h>

#include "base/cleanup.h"
#include "base/page.h"

typedef ssize_t (*vm_copy)(pid_t, const struct iovec *, unsigned long, const struct iovec *, unsigned long,
			   unsigned long);

/* One copy through the leader or, if the leader has no memory any more, through the other threads. */
static ssize_t vm_any(const struct process *process, vm_copy copy, uint64_t remote_at, void *local_at,
		      size_t len)
{
	struct iovec local = {.iov_base = local_at, .iov_len = len};
	struct iovec remote = {.iov_base = (void *)(uintptr_t)remote_at, .iov_len = len};
	ssize_t n = copy(process->pid, &local, 1, &remote, 1, 0);

	if (n >= 0 || errno != ESRCH)
		return n < 0 ? -errno : n;
	for (const struct tracee *t = process->tracees; t; t = t->next) {
		if (t->tid == process->pid || t->stop == TRACEE_EXITED)
			continue;
		n = copy(t->tid, &local, 1, &remote, 1, 0);
		if (n >= 0 || errno != ESRCH)
			return n < 0 ? -errno : n;
	}
	return -ESRCH;
}

static int open_mem_of(pid_t tid, int flags)
{
	char path[64];
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/mem", tid);
	fd = open(path, flags | O_CLOEXEC);
	return fd < 0 ? -errno : fd;
}

/* Copies `len` bytes through one thread's mem file. -ESRCH: that thread has no memory. */
static int mem_copy(pid_t tid, bool write_it, uint64_t remote_at, void *local_at, size_t len)
{
	auto_close int fd = open_mem_of(tid, write_it ? O_RDWR : O_RDONLY);
	size_t done = 0;

	if (fd < 0)
		return fd == -ENOENT ? -ESRCH : fd;
	while (done < len) {
		char *at = (char *)local_at + done;
		ssize_t n = write_it ? pwrite(fd, at, len - done, (off_t)(remote_at + done))
				     : pread(fd, at, len - done, (off_t)(remote_at + done));

		if (n < 0 && errno == EINTR)
			continue;
		if (n == 0) /* the address space is gone */
			return -ESRCH;
		if (n < 0)
			return errno == EIO ? -EFAULT : -errno; /* EIO: nothing is mapped there */
		done += (size_t)n;
	}
	return 0;
}

static int mem_any(const struct process *process, bool write_it, uint64_t remote_at, void *local_at,
		   size_t len)
{
	int code = mem_copy(process->pid, write_it, remote_at, local_at, len);

	for (const struct tracee *t = process->tracees; t && code == -ESRCH; t = t->next)
		if (t->tid != process->pid && t->stop != TRACEE_EXITED)
			code = mem_copy(t->tid, write_it, remote_at, local_at, len);
	return code;
}

int memory_read(const struct process *src_tracee, struct taddr src, void *dest_tracer, size_t len)
{
	ssize_t n = vm_any(src_tracee, process_vm_readv, src.a, dest_tracer, len);

	if (n == (ssize_t)len)
		return 0;
	if (n == -ESRCH)
		return -ESRCH;
	return mem_any(src_tracee, false, src.a, dest_tracer, len);
}

int memory_write(const struct process *dest_tracee, struct taddr dest, const void *src_tracer, size_t len)
{
	ssize_t n = vm_any(dest_tracee, process_vm_writev, dest.a, (void *)(uintptr_t)src_tracer, len);

	if (n == (ssize_t)len)
		return 0;
	return n < 0 ? (int)n : -EFAULT; /* a short count: the rest is not writable */
}

int memory_write_force(const struct process *dest_tracee, struct taddr dest, const void *src_tracer,
		       size_t len)
{
	return mem_any(dest_tracee, true, dest.a, (void *)(uintptr_t)src_tracer, len);
}

/* Reads page by page, so that a string may end just before an unmapped page. */
ssize_t memory_read_string(const struct process *src_tracee, struct taddr src, char *dest_tracer, size_t size)
{
	size_t done = 0;

	while (done < size) {
		size_t step = PAGE - (src.a + done) % PAGE;
		char *end;
		int code;

		if (step > size - done)
			step = size - done;
		code = memory_read(src_tracee, (struct taddr){src.a + done}, dest_tracer + done, step);
		if (code < 0)
			return code;
		end = memchr(dest_tracer + done, 0, step);
		if (end)
			return end - dest_tracer;
		done += step;
	}
	return -ENAMETOOLONG;
}
