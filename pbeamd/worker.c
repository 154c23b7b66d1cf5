/*
 * Children for what may block: reading images, waiting for processes to go, starting a job anew. Each gets
 * the connection as its own and answers there.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/log.h"
#include "pbeamd/server.h"

void worker_refuse(int sock, const struct err *err)
{
	Pbeam__Failed failed = PBEAM__FAILED__INIT;

	failed.code = err->code;
	failed.text = (char *)(uintptr_t)err->text;
	if (frame_send(sock, PBEAM__DAEMON_REQUEST__DAEMON_FAILED, &failed.base, NULL, 0, NULL) < 0)
		log_info("refused, and nobody is there to hear it: %s", err->text);
}

static void reset_signals(void)
{
	sigset_t none;

	signal(SIGCHLD, SIG_DFL);
	signal(SIGTERM, SIG_DFL);
	signal(SIGINT, SIG_DFL);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
}

int worker_start(struct connection *connection, worker_fn work, const void *arg, struct err *err)
{
	struct server *server = connection->server;
	pid_t child = fork();

	if (child < 0)
		return err_sys(err, "start a process for the request");
	if (child == 0) {
		reset_signals();
		close(server->listener);
		close(server->lock);
		/* the other connections end when they end, not when this child does */
		for (const struct connection *other = server->connections; other; other = other->next)
			if (other != connection)
				close(other->fd);
		fcntl(connection->fd, F_SETFL, 0);
		work(server, connection->fd, arg);
		_exit(0);
	}
	server->nworkers++;
	connection->phase = CONNECTION_BUSY;
	connection->closing =
		true; /* nothing is queued: handlers_dispatch() lets it end here, the child has it */
	return 0;
}
