/*
 * Children for work that may block: reading images, waiting for processes to end, starting a job again. Each
 * gets the connection as its own and replies on it.
 */
#include "pbeamd/transport/worker.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "pbeamd/transport/server.h"

struct worker {
	struct worker *next;
	pid_t pid;
};

static void reset_signals(void)
{
	sigset_t none;

	signal(SIGCHLD, SIG_DFL);
	signal(SIGTERM, SIG_DFL);
	signal(SIGINT, SIG_DFL);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
}

pid_t worker_fork(struct server *server, const struct connection *keep)
{
	pid_t child = fork();

	if (child != 0)
		return child;
	reset_signals();
	close(server->listener);
	close(server->lock);
	/* the other connections end when they end, not when this child does */
	for (const struct connection *other = server->connections; other; other = other->next)
		if (other != keep)
			close(other->stream.fd);
	server->calls->leave_child(server);
	return 0;
}

void worker_ended(struct server *server, pid_t pid)
{
	for (struct worker **p = &server->workers; *p; p = &(*p)->next)
		if ((*p)->pid == pid) {
			struct worker *worker = *p;

			*p = worker->next;
			free(worker);
			return;
		}
}

int worker_start(struct connection *connection, worker_fn work, const void *arg, struct err *err)
{
	struct server *server = connection->server;
	struct worker *worker = calloc(1, sizeof(*worker));

	if (!worker)
		return err_code(err, -ENOMEM, "start a process for the request");
	worker->pid = worker_fork(server, connection);
	if (worker->pid < 0) {
		free(worker);
		return err_sys(err, "start a process for the request");
	}
	if (worker->pid == 0) {
		fcntl(connection->stream.fd, F_SETFL, 0);
		work(server, connection->stream.fd, arg);
		_exit(0);
	}
	worker->next = server->workers;
	server->workers = worker;
	connection->phase = CONNECTION_BUSY;
	connection->closing =
		true; /* nothing is queued: handlers_dispatch() lets it end here, the child has it */
	return 0;
}
