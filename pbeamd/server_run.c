#include "pbeamd/server_run.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/dirs.h"
#include "base/io.h"
#include "base/log.h"
#include "image/file_undo.h"
#include "pbeamd/cluster_layers.h"
#include "pbeamd/config.h"
#include "pbeamd/handlers/handlers.h"
#include "pbeamd/services/sweep.h"
#include "pbeamd/transport/connection.h"
#include "pbeamd/transport/listener.h"
#include "pbeamd/transport/server.h"
#include "pbeamd/transport/worker.h"
#include "proto/rpc.h"
#include "proto/serve.h"

enum { TAKEOVER_MS = 3000, TAKEOVER_STEP_MS = 10 };

static void leave_child(struct server *server)
{
	if (server->cluster)
		cluster_leave_child(server->cluster);
}

static const struct server_calls server_calls = {
	.request = handlers_dispatch,
	.closed = handlers_forget,
	.leave_child = leave_child,
	.cluster = &cluster_calls,
};

static void tell_ready(const struct server_options *options)
{
	if (options->ready_fd >= 0) {
		if (write(options->ready_fd, "1", 1) != 1)
			log_info("the process that started this daemon has ended");
		close(options->ready_fd);
	}
	if (!options->background)
		fprintf(stderr, "pbeamd: ready\n");
}

/*
 * A lock on RUNTIME/daemon.lock ensures that only one daemon serves; the kernel releases it however its
 * holder ends. A daemon that was started on demand and finds another one waits until that one serves, so that
 * the program that started it can connect.
 */
static int take_lock(struct server *server, const char *dir, struct err *err)
{
	struct timespec step = {0, TAKEOVER_STEP_MS * 1000000};
	char path[PATH_MAX + 16];
	auto_close int fd = -1;

	snprintf(path, sizeof(path), "%s/daemon.lock", dir);
	fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (fd < 0)
		return err_sys(err, "open %s", path);
	for (int waited = 0; flock(fd, LOCK_EX | LOCK_NB) < 0; waited += TAKEOVER_STEP_MS) {
		int sock = -1;

		if (errno != EWOULDBLOCK)
			return err_sys(err, "lock %s", path);
		if (!server->options->background || waited >= TAKEOVER_MS)
			return err_set(err, -EADDRINUSE, "another pbeamd serves %s already", server->path);
		sock = frame_connect(server->path, NULL);
		if (sock >= 0) {
			close(sock);
			return -EADDRINUSE;
		}
		nanosleep(&step, NULL);
	}
	server->lock = steal_fd(&fd);
	return 0;
}

static int open_socket(struct server *server, struct err *err)
{
	char dir[PATH_MAX];
	struct stat st;
	int r = dirs_runtime(dir, NULL, err);

	if (r < 0)
		return r;
	if (snprintf(server->path, sizeof(server->path), "%s/daemon", dir) >= (int)sizeof(server->path))
		return err_code(err, -ENAMETOOLONG, "socket in %s", dir);
	r = take_lock(server, dir, err);
	if (r < 0)
		return r;
	server->listener = serve_listen(server->path, err);
	if (server->listener < 0)
		return server->listener;
	if (stat(server->path, &st) < 0)
		return err_sys(err, "listen on %s", server->path);
	server->inode = st.st_ino;
	return 0;
}

/* ---- events ---- */

static int server_open_names(struct names **names, struct err *err)
{
	int r = names_open(names, err);

	if (r < 0)
		return r;
	names_include_others(*names);
	names_limit_wait(*names, true);
	return 0;
}

/* The table was made after the directory of another one had been removed, and replaced by that. A cluster's
 * table is never replaced: it is published. */
static void server_renew_names(struct server *server)
{
	struct names *names;
	struct err err = ERR_INIT;

	if (server->cluster || names_is_found(server->names))
		return;
	if (server_open_names(&names, &err) < 0) {
		log_warn("%s", err.text);
		return;
	}
	names_close(server->names);
	server->names = names;
}

static void server_take_client(void *arg, int fd)
{
	struct server *server = arg;

	server_renew_names(server);
	server->active_ns = io_now_ns(CLOCK_MONOTONIC);
	connection_open(server, fd);
}

/* The failure answers the client's Hello. */
static void server_refuse_client(int fd, const struct err *why)
{
	struct err text = ERR_INIT;
	struct rlimit limit = {0};

	getrlimit(RLIMIT_NOFILE, &limit);
	err_set(&text, why->code,
		"pbeamd has no descriptor left (its limit is %lu): try again later, or raise "
		"the limit (ulimit -n) and restart pbeamd",
		(unsigned long)limit.rlim_cur);
	const Pbeam__Failed failed = rpc_failed(&text);

	if (frame_send(fd, PBEAM__RPC__RPC_FAILED, &failed.base, NULL, 0, NULL) < 0)
		log_debug("a refused client has ended");
}

static const struct listener_calls local_calls = {
	.accept = serve_accept, .take = server_take_client, .refuse = server_refuse_client};

static void on_child(evutil_socket_t signal, short what, void *arg)
{
	struct server *server = arg;
	pid_t pid;

	while ((pid = waitpid(-1, NULL, WNOHANG)) > 0)
		worker_ended(server, pid);
	server->active_ns = io_now_ns(CLOCK_MONOTONIC);
}

static void on_stop(evutil_socket_t signal, short what, void *arg)
{
	struct server *server = arg;

	event_base_loopbreak(server->base);
}

/* The socket is not in its place any more: the directory was removed, and no program can connect. */
static bool is_unreachable(const struct server *server)
{
	struct stat st;

	if (stat(server->path, &st) < 0)
		return errno == ENOENT || errno == ENOTDIR;
	return st.st_ino != server->inode;
}

/* Serves again where programs look for the daemon now, unless another one does. */
static int server_return(struct server *server, struct err *err)
{
	int lock = server->lock, socket = server->listener, r;

	listener_close(server->accepting);
	server->accepting = NULL;
	server->lock = server->listener = -1;
	close(socket);
	close(lock);
	r = open_socket(server, err);
	if (r == 0)
		r = names_publish(server->names, err);
	if (r == 0 && server->cluster)
		r = config_remember(server->options->cluster, err);
	return r < 0 ? r
		     : listener_open(&server->accepting, server->base, server->listener, &local_calls, server,
				     err);
}

static void on_idle_check(evutil_socket_t fd, short what, void *arg)
{
	struct server *server = arg;
	uint64_t now = io_now_ns(CLOCK_MONOTONIC);
	struct err err = ERR_INIT;

	if (is_unreachable(server)) {
		const bool ends = server->options->background && !server->cluster;

		if (ends && (server->connections || server->workers))
			return; /* they are served first */
		log_info("the socket %s is gone", server->path);
		if (ends || server_return(server, &err) < 0) {
			if (err.code)
				log_warn("%s", err.text);
			event_base_loopbreak(server->base);
			return;
		}
	}
	sweep_sockets();
	if (!server->options->background || server->cluster)
		return;
	if (server->connections || server->workers || names_job_count(server->names) > 0)
		server->active_ns = now;
	else if (now - server->active_ns >= server->options->idle_s * 1000000000ull)
		event_base_loopbreak(server->base);
}

static int server_add_events(struct server *server, struct err *err)
{
	struct timeval often = {server->options->idle_s > 1 ? 1 : 0,
				server->options->idle_s > 1 ? 0 : 200000};
	struct event **all[] = {&server->children, &server->idle, &server->stop[0], &server->stop[1]};

	server->children = evsignal_new(server->base, SIGCHLD, on_child, server);
	server->stop[0] = evsignal_new(server->base, SIGTERM, on_stop, server);
	server->stop[1] = evsignal_new(server->base, SIGINT, on_stop, server);
	server->idle = event_new(server->base, -1, EV_PERSIST, on_idle_check, server);
	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
		if (!*all[i] || event_add(*all[i], all[i] == &server->idle ? &often : NULL) < 0)
			return err_set(err, -ENOMEM, "no memory for the event loop");
	return listener_open(&server->accepting, server->base, server->listener, &local_calls, server, err);
}

/* Removes the socket before the lock: the next holder of the lock finds the place free. */
static void close_server(struct server *server)
{
	struct event *all[] = {server->children, server->idle, server->stop[0], server->stop[1]};

	while (server->connections)
		connection_close(server->connections);
	if (server->cluster)
		cluster_close(server->cluster);
	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
		if (all[i])
			event_free(all[i]);
	listener_close(server->accepting);
	if (server->listener >= 0) {
		if (!is_unreachable(server))
			unlink(server->path);
		close(server->listener);
	}
	if (server->base)
		event_base_free(server->base);
	if (server->names) {
		names_unpublish();
		names_close(server->names);
	}
	if (server->lock >= 0)
		close(server->lock);
}

int server_run(const struct server_options *options, struct err *err)
{
	struct server server = {.calls = &server_calls, .options = options, .lock = -1, .listener = -1};
	int r;

	signal(SIGPIPE, SIG_IGN);
	if (options->background)
		signal(SIGHUP, SIG_IGN);
	io_raise_descriptor_limit(); /* every client is one */
	server.active_ns = io_now_ns(CLOCK_MONOTONIC);
	if (file_undo_recover(err) < 0)
		log_error("%s", err->text);
	err_clear(err);
	r = open_socket(&server, err);
	if (r == 0)
		r = server_open_names(&server.names, err);
	if (r == 0) {
		server.base = event_base_new();
		r = server.base ? server_add_events(&server, err)
				: err_set(err, -ENOMEM, "no memory for the event loop");
	}
	if (r == 0 && options->cluster) {
		r = cluster_open(&server, err);
	} else if (r == 0) {
		config_forget();
		r = names_cluster_set(server.names, NULL);
		if (r < 0)
			names_explain(server.names, r, err);
	}
	if (r == 0) {
		tell_ready(options);
		event_base_dispatch(server.base);
	}
	close_server(&server);
	return r;
}
