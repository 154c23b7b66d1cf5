/*
 * Channels for local programs: a channel from another host is handed to the program that expects its cookie,
 * or to the command of scip that serves its kind. For a channel that a local program requests a child, which
 * has the key, connects.
 */
#include "pbeamd/transport/route.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "pbeamd/transport/cluster.h"
#include "pbeamd/transport/connection.h"
#include "pbeamd/transport/host.h"
#include "pbeamd/transport/peer.h"
#include "pbeamd/transport/server.h"
#include "pbeamd/transport/worker.h"
#include "proto/daemon.h"
#include "proto/rpc.h"

enum { CHANNEL_FD = 3 };

/* ---- incoming channels ---- */

/* The maps of paths as one variable of the environment, a line each: `scip receive` looks them up. */
static void export_maps(const struct cluster_options *options)
{
	char text[4096] = "";
	size_t len = 0;

	for (int i = 0; i < options->nmaps; i++) {
		int n = snprintf(text + len, sizeof(text) - len, "%s\n", options->maps[i]);

		if (n < 0 || (size_t)n >= sizeof(text) - len)
			return;
		len += (size_t)n;
	}
	setenv("PBEAM_MAP", text, 1);
}

static _Noreturn void route_execute_scip(const struct cluster *cluster, const char *scip, const char *what,
					 const char *from, int fd)
{
	int null = open("/dev/null", O_RDWR);

	setsid();
	fcntl(fd, F_SETFL, 0);
	dup2(null, STDIN_FILENO);
	dup2(null, STDOUT_FILENO);
	if (cluster->server->options->background)
		dup2(null, STDERR_FILENO);
	if (fd != CHANNEL_FD)
		dup2(fd, CHANNEL_FD);
	else
		fcntl(fd, F_SETFD, 0);
	close_range(CHANNEL_FD + 1, ~0u, 0);
	setenv("PBEAM_PEER", from, 1);
	export_maps(cluster->options);
	execl(scip, "scip", what, (char *)NULL);
	_exit(127);
}

/* The command of scip that serves channels of this kind; NULL: pbeamd serves them. */
static const char *program_of(uint32_t kind)
{
	switch (kind) {
	case PBEAM__CHANNEL_KIND__CHANNEL_MIGRATE:
		return "receive";
	case PBEAM__CHANNEL_KIND__CHANNEL_RECONNECT:
		return "reconnect";
	case PBEAM__CHANNEL_KIND__CHANNEL_CUT:
		return "part";
	case PBEAM__CHANNEL_KIND__CHANNEL_CONSOLE:
		return "console";
	default:
		return NULL;
	}
}

/* Starts `scip receive` or a similar command with the channel as descriptor 3. It outlives this daemon. */
static int route_start_scip(struct cluster *cluster, const char *what, const char *from, int fd,
			    struct err *err)
{
	char scip[PATH_MAX];
	pid_t child;
	int r = daemon_find_program("scip", scip, sizeof(scip), err);

	if (r < 0)
		return r;
	child = worker_fork(cluster->server, NULL);
	if (child < 0)
		return err_sys(err, "start scip %s", what);
	if (child == 0)
		route_execute_scip(cluster, scip, what, from, fd);
	return 0;
}

static struct connection *find_expecting(const struct server *server, const Pbeam__ChannelHello *hello)
{
	if (hello->cookie.len != CHANNEL_COOKIE_SIZE)
		return NULL;
	for (struct connection *c = server->connections; c; c = c->next)
		if (c->expecting && memcmp(c->cookie, hello->cookie.data, CHANNEL_COOKIE_SIZE) == 0)
			return c;
	return NULL;
}

static int hand_over(struct cluster *cluster, int fd, const Pbeam__ChannelHello *hello, struct err *err)
{
	struct connection *expecting = find_expecting(cluster->server, hello);
	Pbeam__Done done = PBEAM__DONE__INIT;
	int r;

	if (!expecting)
		return err_set(err, -EADDRNOTAVAIL, "host %s: no process expects a channel with this cookie",
			       hello->host);
	r = channel_welcome(fd, cluster->options->name, err);
	if (r == 0 && fcntl(fd, F_SETFL, 0) < 0)
		r = err_sys(err, "pass a channel on");
	if (r == 0)
		connection_send(expecting, PBEAM__DAEMON_REQUEST__DAEMON_CHANNEL, &done.base, &fd, 1);
	return r;
}

int route_channel(struct cluster *cluster, int fd, const Pbeam__ChannelHello *hello, const char *address,
		  struct err *err)
{
	auto_close int channel = fd;
	const char *program = program_of(hello->kind);
	int r;

	if (hello->kind == PBEAM__CHANNEL_KIND__CHANNEL_SESSION)
		return hand_over(cluster, channel, hello, err);
	if (hello->kind != PBEAM__CHANNEL_KIND__CHANNEL_PEER && !program)
		return err_set(err, -EPROTO, "host %s: there are no channels of kind %d", hello->host,
			       (int)hello->kind);
	r = channel_welcome(channel, cluster->options->name, err);
	if (r < 0)
		return r;
	log_info("channel of kind %d from %s (%s)", (int)hello->kind, hello->host, address);
	if (hello->kind == PBEAM__CHANNEL_KIND__CHANNEL_PEER) {
		peer_open(cluster, steal_fd(&channel), hello->host, address);
		return 0;
	}
	return route_start_scip(cluster, program, hello->host, channel, err);
}

/* ---- requested channels ---- */

struct wanted {
	char address[CLUSTER_ADDRESS_MAX], host[CHANNEL_HOST_MAX];
	uint32_t kind;
	uint8_t cookie[CHANNEL_COOKIE_SIZE];
	bool has_cookie;
};

static void connect_work(struct server *server, int sock, const void *arg)
{
	const struct wanted *wanted = arg;
	const struct cluster *cluster = server->cluster;
	Pbeam__Done done = PBEAM__DONE__INIT;
	char host[CHANNEL_HOST_MAX];
	struct err err = ERR_INIT;
	auto_close int fd =
		channel_connect(wanted->address, &cluster->key, cluster->options->name, wanted->kind,
				wanted->has_cookie ? wanted->cookie : NULL, host, &err);

	if (fd < 0) {
		err_wrap(&err, fd, "host %s", wanted->host);
		rpc_refuse(sock, &err);
	} else if (strcmp(host, wanted->host) != 0) {
		err_set(&err, -EHOSTUNREACH, "host %s: %s is host %s now", wanted->host, wanted->address,
			host);
		rpc_refuse(sock, &err);
	} else if (frame_send(sock, PBEAM__RPC__RPC_REPLY, &done.base, &fd, 1, &err) < 0) {
		log_info("the channel is open, but the client has left: %s", err.text);
	}
}

/* Between programs of this host: the same frames, without TLS. */
static int connect_here(struct connection *connection, const Pbeam__ChannelRequest *wish, struct err *err)
{
	struct cluster *cluster = connection->server->cluster;
	Pbeam__ChannelHello hello = PBEAM__CHANNEL_HELLO__INIT;
	auto_close int ours = -1, theirs = -1;
	Pbeam__Done done = PBEAM__DONE__INIT;
	struct frame frame;
	int ends[2], r;

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) < 0)
		return err_sys(err, "make a channel");
	ours = ends[0];
	theirs = ends[1];
	hello.kind = (Pbeam__ChannelKind)wish->kind;
	hello.cookie = wish->cookie;
	hello.host = (char *)(uintptr_t)cluster->options->name;
	r = route_channel(cluster, steal_fd(&theirs), &hello, "here", err);
	if (r < 0)
		return r;
	if (frame_recv(ours, &frame, err) == 1) /* the welcome is there already */
		frame_free(&frame);
	connection_send(connection, PBEAM__RPC__RPC_REPLY, &done.base, &ours, 1);
	return 0;
}

int handle_channel(struct connection *connection, const ProtobufCMessage *message, struct err *err)
{
	const Pbeam__ChannelRequest *wish = (const Pbeam__ChannelRequest *)message;
	struct cluster *cluster = connection->server->cluster;
	struct wanted wanted = {.kind = wish->kind, .has_cookie = wish->cookie.len > 0};
	struct host *host;
	int r = cluster_need(connection->server, err);

	if (r < 0)
		return r;
	if (wish->kind != PBEAM__CHANNEL_KIND__CHANNEL_SESSION && !program_of(wish->kind))
		return err_set(err, -EINVAL, "there are no channels of kind %u", wish->kind);
	if (wish->cookie.len && wish->cookie.len != CHANNEL_COOKIE_SIZE)
		return err_set(err, -EINVAL, "a cookie has %d bytes", CHANNEL_COOKIE_SIZE);
	if (!strcmp(wish->host, cluster->options->name))
		return connect_here(connection, wish, err);
	host = host_find(cluster, wish->host);
	if (!host)
		return err_set(err, -EHOSTUNREACH, "there is no host %s; `pbeamctl hosts` lists all",
			       wish->host);
	if (!host_is_up(host))
		return err_set(err, -EHOSTUNREACH, "host %s is lost; it does not answer", wish->host);
	r = host_address(cluster, host, wanted.address, err);
	if (r < 0)
		return r;
	strcpy(wanted.host, host->name);
	if (wanted.has_cookie)
		memcpy(wanted.cookie, wish->cookie.data, CHANNEL_COOKIE_SIZE);
	return worker_start(connection, connect_work, &wanted, err);
}

int handle_expect(struct connection *connection, const ProtobufCMessage *message, struct err *err)
{
	const Pbeam__ChannelRequest *wish = (const Pbeam__ChannelRequest *)message;
	Pbeam__Done done = PBEAM__DONE__INIT;
	int r = cluster_need(connection->server, err);

	if (r < 0)
		return r;
	if (wish->cookie.len != CHANNEL_COOKIE_SIZE)
		return err_set(err, -EINVAL, "a cookie has %d bytes", CHANNEL_COOKIE_SIZE);
	memcpy(connection->cookie, wish->cookie.data, CHANNEL_COOKIE_SIZE);
	connection->expecting = true;
	connection_reply(connection, &done.base);
	return 0;
}
