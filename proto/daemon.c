/*
 * Starts pbeamd on demand: forked twice, in a session of its own, inheriting no descriptors. The daemon
 * reports that it serves by a byte on the pipe given to it (--ready-fd). End of file means that it does not
 * serve: its log has the reason, or another process has started a daemon first, and connecting succeeds.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/dirs.h"
#include "base/io.h"
#include "proto/daemon.h"
#include "proto/frame.h"

enum { READY_FD = 3, READY_BYTE = '1', START_TIMEOUT_MS = 10000 };

static int try_program(char *path, size_t size, const char *dir, size_t dir_len, const char *middle,
		       const char *name)
{
	int n = snprintf(path, size, "%.*s%s/%s", (int)dir_len, dir, middle, name);

	return n > 0 && (size_t)n < size && access(path, X_OK) == 0;
}

int daemon_find_program(const char *name, char *path, size_t size, struct err *err)
{
	char self[PATH_MAX], middle[64];
	const char *search = getenv("PATH"), *slash;

	if (io_readlink(AT_FDCWD, "/proc/self/exe", self, sizeof(self)) == 0 &&
	    (slash = strrchr(self, '/'))) {
		size_t len = (size_t)(slash - self);

		snprintf(middle, sizeof(middle), "/../%s", name);
		if (try_program(path, size, self, len, "", name) ||
		    try_program(path, size, self, len, middle, name))
			return 0;
	}
	while (search && *search) {
		size_t len = strcspn(search, ":");

		if (len && try_program(path, size, search, len, "", name))
			return 0;
		search += len + (search[len] == ':');
	}
	return err_set(err, -ENOENT, "%s is neither beside this program nor on PATH; install it there", name);
}

/* In the grandchild: only `ready`, if there is one, stays open, as READY_FD. */
static _Noreturn void become_daemon(const char *path, int ready)
{
	char number[16];
	sigset_t none;
	int null = open("/dev/null", O_RDWR);

	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	for (int i = 0; i < 3; i++)
		dup2(null, i);
	if (ready >= 0 && ready != READY_FD)
		dup2(ready, READY_FD);
	else if (ready >= 0)
		fcntl(READY_FD, F_SETFD, 0);
	close_range(ready >= 0 ? READY_FD + 1 : READY_FD, ~0u, 0);
	snprintf(number, sizeof(number), "%d", READY_FD);
	if (chdir("/") < 0)
		_exit(1);
	if (ready >= 0)
		execl(path, "pbeamd", "--background", "--ready-fd", number, (char *)NULL);
	else
		execl(path, "pbeamd", "--background", (char *)NULL);
	_exit(1);
}

static int daemon_start(int ready, struct err *err)
{
	char path[PATH_MAX];
	pid_t child;
	int r = daemon_find_program("pbeamd", path, sizeof(path), err);

	if (r < 0)
		return r;
	child = fork();
	if (child < 0)
		return err_sys(err, "start pbeamd");
	if (child == 0) {
		if (setsid() < 0 || fork() != 0)
			_exit(0);
		become_daemon(path, ready);
	}
	while (waitpid(child, NULL, 0) < 0 && errno == EINTR)
		;
	return 0;
}

static int start_and_wait(struct err *err)
{
	auto_close int in = -1, out = -1;
	struct pollfd ready;
	char word[ERR_TEXT_MAX];
	int ends[2], r;
	ssize_t n;

	if (pipe2(ends, O_CLOEXEC) < 0)
		return err_sys(err, "start pbeamd");
	in = ends[0];
	out = ends[1];
	r = daemon_start(out, err);
	if (r < 0)
		return r;
	close(steal_fd(&out));
	ready = (struct pollfd){.fd = in, .events = POLLIN};
	do
		r = poll(&ready, 1, START_TIMEOUT_MS);
	while (r < 0 && errno == EINTR);
	if (r == 0)
		return err_set(err, -ETIMEDOUT, "pbeamd was started but does not answer; look into its log");
	n = io_read_full(in, word, 1);
	if (n == 1 && word[0] != READY_BYTE) {
		ssize_t more = io_read_full(in, word + 1, sizeof(word) - 2);

		word[1 + (more > 0 ? more : 0)] = 0;
		return err_set(err, -EIO, "pbeamd cannot be started: %s", word);
	}
	return 0;
}

static int path_of_socket(char *path, struct err *err)
{
	int r = dirs_runtime(path, NULL, err);

	if (r == 0 && strlen(path) + sizeof("/daemon") > PATH_MAX)
		r = err_code(err, -ENAMETOOLONG, "socket of pbeamd");
	if (r == 0)
		strcat(path, "/daemon");
	return r;
}

int daemon_connect(struct err *err)
{
	char path[PATH_MAX];
	int sock, r = path_of_socket(path, err);

	if (r < 0)
		return r;
	/* The socket of a daemon that is ending as idle may still be found: three attempts are enough. */
	for (int attempt = 0; attempt < 3; attempt++) {
		sock = frame_connect(path, err);
		if (sock >= 0 || (sock != -ENOENT && sock != -ECONNREFUSED))
			return sock;
		r = start_and_wait(err);
		if (r < 0)
			return r;
		err_clear(err);
	}
	sock = frame_connect(path, err);
	if (sock < 0)
		return err_set(err, sock,
			       "pbeamd cannot be started; run `pbeamd` in the foreground to see why");
	return sock;
}

void daemon_start_quietly(void)
{
	char path[PATH_MAX];
	int sock;

	if (path_of_socket(path, NULL) < 0)
		return;
	sock = frame_connect(path, NULL);
	if (sock >= 0)
		close(sock);
	else if (daemon_start(-1, NULL) < 0)
		return; /* no command waits for it; the next one that needs it reports the error */
}
