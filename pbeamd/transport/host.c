/* The hosts of the cluster as this one sees them. */
#include "pbeamd/transport/host.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/io.h"
#include "base/list.h"
#include "base/log.h"
#include "pbeamd/transport/cluster.h"
#include "pbeamd/transport/peer.h"
#include "proto/message.h"

enum { LOST_AFTER_MS = 4000, REFUSED_PAUSE_MS = 4000 };

struct host *host_find(struct cluster *cluster, const char *name)
{
	for (struct host *host = cluster->hosts; host; host = host->next)
		if (!strcmp(host->name, name))
			return host;
	return NULL;
}

struct host *host_get(struct cluster *cluster, const char *name)
{
	struct host *host = host_find(cluster, name);

	if (host)
		return host;
	host = calloc(1, sizeof(*host));
	if (!host)
		return NULL;
	snprintf(host->name, sizeof(host->name), "%s", name);
	host->quiet_ns = io_now_ns(CLOCK_MONOTONIC);
	host->next = cluster->hosts;
	cluster->hosts = host;
	return host;
}

void host_forget(struct cluster *cluster, struct host *host)
{
	list_remove(&cluster->hosts, host);
	if (host->peer)
		peer_close(host->peer);
	message_free(host->info);
	free(host);
}

void host_heard(struct host *host, Pbeam__HostInfo *info)
{
	message_free(host->info);
	host->info = info;
	host->heard_ns = io_now_ns(CLOCK_MONOTONIC);
	if (host->said_lost)
		log_warn("host %s is back", host->name);
	host->said_lost = false;
}

bool host_is_up(const struct host *host)
{
	if (host->peer)
		return true;
	return host->heard_ns && host->info && host->info->state == PBEAM__HOST_INFO__STATE__UP &&
	       io_now_ns(CLOCK_MONOTONIC) - host->heard_ns < LOST_AFTER_MS * 1000000ull;
}

bool host_listens(const Pbeam__HostInfo *info, char address[CLUSTER_ADDRESS_MAX])
{
	if (channel_address_is_unix(info->address)) {
		snprintf(address, CLUSTER_ADDRESS_MAX, "%.250s", info->address);
		return true;
	}
	if (!info->port || !info->address[0])
		return false;
	snprintf(address, CLUSTER_ADDRESS_MAX, strchr(info->address, ':') ? "[%.250s]:%u" : "%.250s:%u",
		 info->address, info->port);
	return true;
}

int host_address(const struct cluster *cluster, const struct host *host, char address[CLUSTER_ADDRESS_MAX],
		 struct err *err)
{
	if (cluster_is_central(cluster, host->name) && cluster_central_address(cluster)[0]) {
		strcpy(address, cluster_central_address(cluster));
		return 0;
	}
	if (!host->info || !host_listens(host->info, address))
		return err_set(err, -EHOSTUNREACH, "host %s does not listen; start its pbeamd with --listen",
			       host->name);
	return 0;
}

void host_dial_later(struct cluster *cluster, const char *name)
{
	struct host *host = host_find(cluster, name);
	uint64_t at = io_now_ns(CLOCK_MONOTONIC) + REFUSED_PAUSE_MS * 1000000ull;

	cluster->join.at_ns = at;
	if (host)
		host->dialler.at_ns = at;
}
