/*
 * Connects to other daemons without waiting: a child connects, shakes hands and greets, and passes the
 * channel back. A host that cannot be reached is tried again for ever, after a pause that grows to some
 * seconds.
 */
#include "pbeamd/transport/dial.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "base/log.h"
#include "pbeamd/transport/cluster.h"
#include "pbeamd/transport/host.h"
#include "pbeamd/transport/peer.h"
#include "pbeamd/transport/worker.h"
#include "proto/message.h"
#include "proto/rpc.h"
#include "proto/stream.h"

enum {
	PAUSE_FIRST_MS = 250,
	PAUSE_MOST_MS = 4000,
	QUIET_MS = PAUSE_MOST_MS + 1000, /* the side that dials has tried by then */
};

struct attempt {
	struct cluster *cluster;
	struct stream stream;	     /* to the child */
	char name[CHANNEL_HOST_MAX]; /* of the host, "" for the one to join */
	char address[CLUSTER_ADDRESS_MAX];
};

static struct dialler *dialler_of(struct cluster *cluster, const char *name)
{
	struct host *host = name[0] ? host_find(cluster, name) : NULL;

	return name[0] ? (host ? &host->dialler : NULL) : &cluster->join;
}

static void dial_finish(struct attempt *attempt, bool reached)
{
	struct dialler *dialler = dialler_of(attempt->cluster, attempt->name);

	if (dialler) {
		unsigned wait = dialler->wait_ms * 2;

		dialler->busy = false;
		dialler->wait_ms = reached || wait < PAUSE_FIRST_MS ? PAUSE_FIRST_MS
				   : wait > PAUSE_MOST_MS	    ? PAUSE_MOST_MS
								    : wait;
		dialler->at_ns = io_now_ns(CLOCK_MONOTONIC) + dialler->wait_ms * 1000000ull;
	}
	stream_close(&attempt->stream);
	free(attempt);
}

static void on_reached(struct attempt *attempt, struct frame *frame)
{
	struct cluster *cluster = attempt->cluster;
	Pbeam__ChannelHello *hello =
		(Pbeam__ChannelHello *)frame_unpack(frame, &pbeam__channel_hello__descriptor, NULL);
	bool good = hello && frame->nfds == 1;

	if (good && attempt->name[0] && strcmp(attempt->name, hello->host) != 0) {
		log_warn("%s is host %s, not %s", attempt->address, hello->host, attempt->name);
		good = false;
	}
	if (good)
		peer_open(cluster, steal_fd(&frame->fds[0]), hello->host, attempt->address);
	message_free(hello);
	dial_finish(attempt, good);
}

static void dial_on_answer(struct stream *stream, struct frame *frame)
{
	struct attempt *attempt = stream->owner;
	struct dialler *dialler = dialler_of(attempt->cluster, attempt->name);
	Pbeam__Failed *refused;

	if (frame->type == PBEAM__CHANNEL_MESSAGE__CHANNEL_HELLO) {
		on_reached(attempt, frame);
		return;
	}
	refused = (Pbeam__Failed *)frame_unpack(frame, &pbeam__failed__descriptor, NULL);
	/* an unreachable host is logged once, another key or version each time */
	if (refused && (!dialler || dialler->wait_ms < PAUSE_MOST_MS || refused->code == -EKEYREJECTED))
		log_warn("%s", refused->text);
	message_free(refused);
	dial_finish(attempt, false);
}

static void dial_on_end(struct stream *stream, const struct err *err)
{
	dial_finish(stream->owner, false);
}

static _Noreturn void connect_and_tell(const struct cluster *cluster, const char *address, int sock)
{
	Pbeam__ChannelHello hello = PBEAM__CHANNEL_HELLO__INIT;
	char host[CHANNEL_HOST_MAX];
	struct err err = ERR_INIT;
	int fd = channel_connect(address, &cluster->key, cluster->options->name,
				 PBEAM__CHANNEL_KIND__CHANNEL_PEER, NULL, host, &err);

	if (fd < 0) {
		rpc_refuse(sock, &err);
		_exit(1);
	}
	hello.host = host;
	if (frame_send(sock, PBEAM__CHANNEL_MESSAGE__CHANNEL_HELLO, &hello.base, &fd, 1, NULL) < 0)
		_exit(1);
	_exit(0);
}

static void dial_address(struct cluster *cluster, struct dialler *dialler, const char *name,
			 const char *address)
{
	static const struct stream_calls calls = {dial_on_answer, dial_on_end, NULL};
	struct attempt *attempt = calloc(1, sizeof(*attempt));
	int ends[2];
	pid_t child;

	if (!attempt || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) < 0) {
		free(attempt);
		return;
	}
	child = worker_fork(cluster->server, NULL);
	if (child == 0) {
		close(ends[0]);
		connect_and_tell(cluster, address, ends[1]);
	}
	close(ends[1]);
	attempt->cluster = cluster;
	strcpy(attempt->name, name);
	strcpy(attempt->address, address);
	dialler->busy = true;
	if (stream_open(&attempt->stream, cluster->server->base, ends[0], &calls, attempt) < 0) {
		attempt->stream.fd = -1;
		dial_finish(attempt, false);
	}
}

static bool is_due(const struct dialler *dialler, uint64_t now_ns)
{
	return !dialler->busy && now_ns >= dialler->at_ns;
}

/* Of two hosts that listen the one with the later name dials, but all dial the central one. The central one
 * dials a host that has not connected for a while, and may not know yet that another host is central. */
static bool ours_to_dial(const struct cluster *cluster, const struct host *host, uint64_t now_ns)
{
	if (host->peer || !host->info || (!host->info->port && !channel_address_is_unix(host->info->address)))
		return false;
	if (cluster->central)
		return now_ns > host->quiet_ns + QUIET_MS * 1000000ull;
	if (cluster_is_central(cluster, host->name))
		return false;
	return cluster->listener < 0 || strcmp(cluster->options->name, host->name) > 0;
}

void dial_tick(struct cluster *cluster, uint64_t now_ns)
{
	const struct host *central = host_find(cluster, cluster->state.host);
	char address[CLUSTER_ADDRESS_MAX];

	if (cluster_central_address(cluster)[0] && !(central && central->peer) &&
	    is_due(&cluster->join, now_ns))
		dial_address(cluster, &cluster->join, "", cluster_central_address(cluster));
	for (struct host *host = cluster->hosts; host; host = host->next)
		if (ours_to_dial(cluster, host, now_ns) && is_due(&host->dialler, now_ns) &&
		    host_address(cluster, host, address, NULL) == 0)
			dial_address(cluster, &host->dialler, host->name, address);
}
