#include "pbeamd/cluster_layers.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/dirs.h"
#include "base/io.h"
#include "base/log.h"
#include "image/file_replace.h"
#include "pbeamd/config.h"
#include "pbeamd/registry/central.h"
#include "pbeamd/registry/registry_engine.h"
#include "pbeamd/registry/registry_settled.h"
#include "pbeamd/registry/stale_jobs.h"
#include "pbeamd/services/addresses.h"
#include "pbeamd/services/bridges.h"
#include "pbeamd/services/numbers.h"
#include "pbeamd/services/take_over.h"
#include "pbeamd/transport/cluster.h"
#include "pbeamd/transport/dial.h"
#include "pbeamd/transport/host.h"
#include "pbeamd/transport/host_info.h"
#include "pbeamd/transport/incoming.h"
#include "pbeamd/transport/listener.h"
#include "pbeamd/transport/peer.h"
#include "pbeamd/transport/remote_request.h"
#include "pbeamd/transport/server.h"
#include "proto/message.h"

enum { TICK_MS = 500 };

/* ---- a random number that distinguishes this host from others of the same name ---- */

/* The name is given to a whole file: a full disk leaves none, and the next start makes one. */
static int make_instance(const char *path, uint8_t instance[CLUSTER_INSTANCE_SIZE], struct err *err)
{
	char beside[PATH_MAX + 8];
	auto_close int fd = -1;
	bool named = false;
	int r;

	if (getrandom(instance, CLUSTER_INSTANCE_SIZE, 0) != CLUSTER_INSTANCE_SIZE)
		return err_sys(err, "make %s", path);
	snprintf(beside, sizeof(beside), "%s.new", path);
	fd = open(beside, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (fd < 0)
		return err_sys(err, "make %s", beside);
	r = io_write_full(fd, instance, CLUSTER_INSTANCE_SIZE);
	if (r == 0 && fsync(fd) < 0)
		r = -errno;
	r = r < 0 ? err_code(err, r, "make %s", path) : file_replace_commit(beside, path, true, &named, err);
	if (r < 0 && !named)
		unlink(beside);
	return r;
}

static int load_instance(uint8_t instance[CLUSTER_INSTANCE_SIZE], struct err *err)
{
	char path[PATH_MAX];
	auto_close int fd = -1;
	int r = dirs_state(path, ".cluster", err);

	if (r < 0)
		return r;
	if (strlen(path) + sizeof("/instance") > sizeof(path))
		return err_code(err, -ENAMETOOLONG, "%s", path);
	strcat(path, "/instance");
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd >= 0 && io_read_full(fd, instance, CLUSTER_INSTANCE_SIZE) == CLUSTER_INSTANCE_SIZE)
		return 0;
	return make_instance(path, instance, err);
}

/* ---- events ---- */

static int cluster_accept(int listener, struct err *err)
{
	int tcp = accept4(listener, NULL, NULL, SOCK_CLOEXEC);

	if (tcp >= 0)
		return tcp;
	return errno == EAGAIN || errno == EINTR || errno == ECONNABORTED ? -EAGAIN
									  : err_sys(err, "accept a channel");
}

static void cluster_take_channel(void *arg, int tcp)
{
	incoming_accept(arg, tcp);
}

static const struct listener_calls channel_calls = {.accept = cluster_accept, .take = cluster_take_channel};

static void on_tick(evutil_socket_t fd, short what, void *arg)
{
	struct cluster *cluster = arg;
	uint64_t now = io_now_ns(CLOCK_MONOTONIC);

	peers_tick(cluster, now);
	dial_tick(cluster, now);
	numbers_tick(cluster, now);
	addresses_tick(cluster, now);
	settled_tick(cluster, now);
	stale_jobs_tick(cluster, now);
	cluster->ticked_ns = now;
}

static int cluster_add_events(struct cluster *cluster, struct err *err)
{
	const struct timeval often = {0, TICK_MS * 1000}, at_once = {0, 1};
	struct event_base *base = cluster->server->base;

	cluster->tick = event_new(base, -1, EV_PERSIST, on_tick, cluster);
	if (!cluster->tick || event_add(cluster->tick, &often) < 0 ||
	    event_base_once(base, -1, EV_TIMEOUT, on_tick, cluster, &at_once) < 0)
		return err_set(err, -ENOMEM, "no memory for the event loop");
	if (cluster->listener < 0)
		return 0;
	return listener_open(&cluster->accepting, base, cluster->listener, &channel_calls, cluster, err);
}

/* ---- calls between the layers ---- */

static int cluster_describe_host(const struct cluster *cluster, Pbeam__HostInfo *info)
{
	return central_describe(cluster, info);
}

static void refresh_host(const struct cluster *cluster, Pbeam__HostInfo *info)
{
	bridges_describe(info);
}

static void on_described(struct peer *peer, const Pbeam__HostInfo *info, bool first)
{
	central_heard(peer, info);
	if (first)
		registry_greet(peer);
}

static void on_lost(struct cluster *cluster, const struct peer *peer)
{
	registry_lost(cluster, peer, cluster_is_central(cluster, peer->name));
}

static void on_registry_ready(struct cluster *cluster)
{
	numbers_tick(cluster, io_now_ns(CLOCK_MONOTONIC));
}

const struct cluster_calls cluster_calls = {
	.describe = cluster_describe_host,
	.refresh = refresh_host,
	.check = central_check,
	.described = on_described,
	.frame = registry_frame,
	.lost = on_lost,
	.ready = on_registry_ready,
};

/* ---- beginning and end ---- */

int cluster_open(struct server *server, struct err *err)
{
	const struct cluster_options *options = server->options->cluster;
	struct cluster *cluster = calloc(1, sizeof(*cluster));
	int r;

	if (!cluster)
		return err_code(err, -ENOMEM, "cluster");
	cluster->calls = server->calls->cluster;
	cluster->server = server;
	cluster->options = options;
	cluster->listener = -1;
	cluster->ticked_ns = io_now_ns(CLOCK_MONOTONIC);
	server->cluster = cluster;
	r = channel_key_load(options->key, &cluster->key, err);
	if (r == 0)
		r = load_instance(cluster->instance, err);
	if (r == 0 && options->listen[0]) {
		r = channel_listen(options->listen, err);
		cluster->listener = r;
	}
	if (r < 0)
		return r;
	r = central_open(cluster, err);
	if (r < 0)
		return r;
	cluster->self = host_info_new(cluster);
	if (!cluster->self)
		return err_code(err, -ENOMEM, "describe this host");
	r = numbers_open(cluster, err);
	if (r == 0)
		r = addresses_open(cluster, err);
	if (r == 0)
		r = registry_open(cluster, err);
	if (r == 0)
		r = cluster_add_events(cluster, err);
	return r < 0 ? r : config_remember(options, err);
}

void cluster_close(struct cluster *cluster)
{
	incoming_close_all(cluster);
	take_over_close(cluster);
	remote_close(cluster);
	while (cluster->peers)
		peer_close(cluster->peers);
	registry_close(cluster);
	addresses_close(cluster);
	numbers_close(cluster);
	while (cluster->hosts)
		host_forget(cluster, cluster->hosts);
	listener_close(cluster->accepting);
	if (cluster->tick)
		event_free(cluster->tick);
	if (cluster->listener >= 0)
		close(cluster->listener);
	message_free(cluster->self);
	explicit_bzero(&cluster->key, sizeof(cluster->key));
	free(cluster);
}

void cluster_leave_child(struct cluster *cluster)
{
	if (cluster->listener >= 0)
		close(cluster->listener);
	for (const struct peer *peer = cluster->peers; peer; peer = peer->next)
		close(peer->stream.fd);
	incoming_leave_child(cluster);
	remote_leave_child(cluster);
}
