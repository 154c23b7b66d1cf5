#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "proto/cluster.pb-c.h"
#include "proto/frame.h"
#include "proto/message.h"
#include "proto/rpc.h"
#include "scip/reconnect/reconnect.h"

int reconnect_send(int channel, const Pbeam__ReconnectRequest *request, struct err *err)
{
	return frame_send(channel, PBEAM__CHANNEL_MESSAGE__RECONNECT_REQUEST, &request->base, NULL, 0, err);
}

Pbeam__ReconnectReply *reconnect_receive(int channel, struct err *err)
{
	Pbeam__ReconnectReply *reply = NULL;
	int r = rpc_receive(channel, "the peer's host", PBEAM__RPC__RPC_REPLY,
			    &pbeam__reconnect_reply__descriptor, &reply, err);

	if (r == -EPIPE)
		err_set(err, -EPIPE, "the host of a connection's other end is lost");
	return reply;
}

int reconnect_fork(struct names *names, struct err *err)
{
	int ends[2];
	pid_t child;

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) < 0)
		return err_sys(err, "make a channel");
	child = fork();
	if (child == 0) {
		sigset_t none;

		/* Forks twice, so that no process has to wait for it; it ends with the channel. */
		if (fork() != 0)
			_exit(0);
		sigemptyset(&none);
		sigprocmask(SIG_SETMASK, &none, NULL);
		signal(SIGINT, SIG_IGN);
		signal(SIGTERM, SIG_IGN);
		if (dup2(ends[1], 3) < 0)
			_exit(1);
		syscall(SYS_close_range, 4, ~0u, 0);
		log_open("scip reconnect", NULL); /* a log file is closed as well */
		_exit(reconnect_serve(names, 3));
	}
	close(ends[1]);
	if (child < 0) {
		int r = err_sys(err, "start scip reconnect");

		close(ends[0]);
		return r;
	}
	while (waitpid(child, NULL, 0) < 0 && errno == EINTR)
		continue;
	return ends[0];
}

void reconnect_backoff(unsigned attempt)
{
	unsigned most_ms = 4u << (attempt < 6 ? attempt : 6), chance = 0;
	struct timespec pause;

	(void)!getrandom(&chance, sizeof(chance), 0);
	chance = 1000u + chance % (most_ms * 1000u);
	pause = (struct timespec){chance / 1000000u, (long)(chance % 1000000u) * 1000};
	nanosleep(&pause, NULL);
}
