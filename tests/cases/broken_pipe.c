/* A write that has written a part and waits returns that part when the other end is closed, and the next
 * one reports the broken pipe: to a pipe and to a socket, SIGPIPE ignored and handled. */
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "tests/cases/case.h"

enum { BYTES = 8 << 20 };

static volatile sig_atomic_t heard;

static void on_pipe(int signal)
{
	heard++;
}

static int writer(int fd, int handled)
{
	static char data[BYTES];
	ssize_t n;

	signal(SIGPIPE, handled ? on_pipe : SIG_IGN);
	n = write(fd, data, sizeof(data));
	if (n <= 0 || n >= BYTES)
		return 1;
	heard = 0;
	if (write(fd, data, sizeof(data)) != -1 || errno != EPIPE)
		return 2;
	return heard == handled ? 0 : 3;
}

static pid_t start(int sockets, int handled, int *end)
{
	int ends[2];
	pid_t pid;

	CHECK((sockets ? socketpair(AF_UNIX, SOCK_STREAM, 0, ends) : pipe(ends)) == 0);
	pid = fork();
	if (pid == 0) {
		for (int fd = 3; fd < ends[1]; fd++)
			close(fd);
		_exit(writer(ends[1], handled));
	}
	close(ends[1]);
	*end = ends[0];
	return pid;
}

int main(void)
{
	int ends[4];
	pid_t pids[4];

	for (int i = 0; i < 4; i++)
		pids[i] = start(i / 2, i % 2, &ends[i]);
	case_sleep_ms(100);
	case_wait();
	for (int i = 0; i < 4; i++)
		CHECK(close(ends[i]) == 0);
	for (int i = 0; i < 4; i++) {
		int status;

		CHECK(waitpid(pids[i], &status, 0) == pids[i] && status == 0);
	}
	case_pass();
}
