#include "base/io.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"

#define NS_PER_MS 1000000ull

enum { SEND_TRIES = 100, SEND_AGAIN_NS = 10000000 };

/* read(2), or pread(2) from `*off` on, until all is read or the file ends. */
static ssize_t read_whole(int fd, void *buf, size_t len, const off_t *off)
{
	size_t done = 0;

	while (done < len) {
		char *at = (char *)buf + done;
		ssize_t n = off ? pread(fd, at, len - done, *off + (off_t)done) : read(fd, at, len - done);

		if (n == 0)
			break;
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		done += (size_t)n;
	}
	return (ssize_t)done;
}

static int write_whole(int fd, const void *buf, size_t len, const off_t *off)
{
	size_t done = 0;

	while (done < len) {
		const char *at = (const char *)buf + done;
		ssize_t n = off ? pwrite(fd, at, len - done, *off + (off_t)done) : write(fd, at, len - done);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		done += (size_t)n;
	}
	return 0;
}

ssize_t io_read_full(int fd, void *buf, size_t len)
{
	return read_whole(fd, buf, len, NULL);
}

ssize_t io_pread_full(int fd, void *buf, size_t len, off_t off)
{
	return read_whole(fd, buf, len, &off);
}

int io_write_full(int fd, const void *buf, size_t len)
{
	return write_whole(fd, buf, len, NULL);
}

int io_pwrite_full(int fd, const void *buf, size_t len, off_t off)
{
	return write_whole(fd, buf, len, &off);
}

int io_slurp(int dirfd, const char *path, size_t max, char **out, size_t *len)
{
	auto_close int fd = openat(dirfd, path, O_RDONLY | O_CLOEXEC);
	size_t size = 4096, used = 0;
	auto_free char *buf = NULL;

	if (fd < 0)
		return -errno;
	for (;;) {
		char *bigger = realloc(buf, size + 1);
		ssize_t n;

		if (!bigger)
			return -ENOMEM;
		buf = bigger;
		n = io_read_full(fd, buf + used, size - used);
		if (n < 0)
			return (int)n;
		used += (size_t)n;
		if (used < size)
			break;
		if (size >= max)
			return -EFBIG;
		size *= 2;
	}
	buf[used] = 0;
	*out = steal_ptr(&buf);
	if (len)
		*len = used;
	return 0;
}

int io_readlink(int dirfd, const char *path, char *buf, size_t size)
{
	ssize_t n = readlinkat(dirfd, path, buf, size);

	if (n < 0)
		return -errno;
	if ((size_t)n >= size)
		return -ENAMETOOLONG;
	buf[n] = 0;
	return 0;
}

int io_next_entry(DIR *dir, const struct dirent **entry)
{
	errno = 0;
	*entry = readdir(dir);
	return *entry ? 1 : -errno;
}

int io_mkdirs(const char *path, struct err *err)
{
	char part[PATH_MAX];
	size_t len = strlen(path);

	if (len >= sizeof(part))
		return err_code(err, -ENAMETOOLONG, "make directory %s", path);
	if (mkdir(path, 0700) == 0 || errno == EEXIST)
		return 0; /* nearly always: no need to try its parents */
	for (size_t i = 1; i <= len; i++) {
		if (path[i] != '/' && path[i] != 0)
			continue;
		memcpy(part, path, i);
		part[i] = 0;
		if (mkdir(part, 0700) < 0 && errno != EEXIST && errno != EISDIR)
			return err_sys(err, "make directory %s", part);
	}
	return 0;
}

/* Waits until the connection of a socket that does not block is made or refused. */
static int await_connection(int sock, int timeout_ms)
{
	const uint64_t end_ns = io_now_ns(CLOCK_MONOTONIC) + (uint64_t)timeout_ms * NS_PER_MS;
	struct pollfd ready = {.fd = sock, .events = POLLOUT};
	socklen_t len = sizeof(int);
	int error = 0;

	for (;;) {
		const uint64_t now_ns = io_now_ns(CLOCK_MONOTONIC);
		int r;

		if (now_ns >= end_ns)
			return -ETIMEDOUT;
		r = poll(&ready, 1, (int)((end_ns - now_ns) / NS_PER_MS) + 1);
		if (r < 0 && errno != EINTR)
			return -errno;
		if (r > 0)
			return getsockopt(sock, SOL_SOCKET, SO_ERROR, &error, &len) < 0 ? -errno : -error;
	}
}

int io_connect(int sock, const struct sockaddr *to, socklen_t len, int timeout_ms)
{
	const int flags = fcntl(sock, F_GETFL);
	int r;

	if (flags < 0 || fcntl(sock, F_SETFL, flags | O_NONBLOCK) < 0)
		return -errno;
	r = connect(sock, to, len) < 0 ? -errno : 0;
	if (r == -EINPROGRESS)
		r = await_connection(sock, timeout_ms);
	if (fcntl(sock, F_SETFL, flags) < 0 && r == 0)
		r = -errno;
	return r;
}

static bool io_send_again(int error, int *tries)
{
	const struct timespec moment = {.tv_nsec = SEND_AGAIN_NS};

	if (error == EINTR)
		return true;
	if ((error != ENOMEM && error != ENOBUFS) || ++*tries == SEND_TRIES)
		return false;
	nanosleep(&moment, NULL);
	return true;
}

ssize_t io_sendmsg(int sock, const struct msghdr *message, int flags)
{
	int tries = 0;
	ssize_t n;

	do
		n = sendmsg(sock, message, flags);
	while (n < 0 && io_send_again(errno, &tries));
	return n < 0 ? -errno : n;
}

ssize_t io_send(int sock, const void *buf, size_t len, int flags)
{
	struct iovec iov = {.iov_base = (void *)(uintptr_t)buf, .iov_len = len};
	const struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1};

	return io_sendmsg(sock, &message, flags);
}

uint64_t io_time_ns(const struct timespec *time)
{
	return (uint64_t)time->tv_sec * 1000000000u + (uint64_t)time->tv_nsec;
}

uint64_t io_now_ns(int clock_id)
{
	struct timespec now;

	clock_gettime(clock_id, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

int io_make_uuid(char uuid[40])
{
	auto_free char *text = NULL;
	int r = io_slurp(AT_FDCWD, "/proc/sys/kernel/random/uuid", 64, &text, NULL);

	if (r < 0)
		return r;
	snprintf(uuid, 40, "%.36s", text);
	return 0;
}

void io_raise_descriptor_limit(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
		limit.rlim_cur = limit.rlim_max;
		setrlimit(RLIMIT_NOFILE, &limit);
	}
}
