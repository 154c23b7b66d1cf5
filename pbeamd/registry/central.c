/*
 * Which host is central. The central host holds the registry and every other host has a copy, so that a user
 * can let another host take over when the central one is lost for good (services/take_over.c).
 *
 * Each host that has been central has a *term*: 0 for the first, one more for each that takes over. HostInfo
 * has the latest term that its sender knows, and the host that is central in it. A host that receives a later
 * term follows: an ordinary host sends its requests to that host from then on, and a host that was central
 * becomes an ordinary one. If two hosts take over at once, on the two sides of a partition, the one with the
 * later name wins.
 *
 * A host keeps this in its store, so that it finds the central host when it is started again with the same
 * options. With another --join the option decides.
 */
#include "pbeamd/registry/central.h"

#include <errno.h>
#include <string.h>
#include <sys/random.h>

#include "base/log.h"
#include "pbeamd/registry/registry_engine.h"
#include "pbeamd/registry/registry_store.h"
#include "pbeamd/transport/cluster.h"
#include "pbeamd/transport/host.h"
#include "pbeamd/transport/peer.h"
#include "proto/message.h"

static const uint8_t no_cluster[CLUSTER_INSTANCE_SIZE];

static bool has_cluster(const struct registry_state *state)
{
	return memcmp(state->cluster, no_cluster, sizeof(no_cluster)) != 0;
}

/* False for a host that has joined no cluster yet. */
static bool says_cluster(const Pbeam__HostInfo *info)
{
	return info->cluster.len == sizeof(no_cluster) &&
	       memcmp(info->cluster.data, no_cluster, sizeof(no_cluster)) != 0;
}

static bool is_same(const struct registry_state *state, const Pbeam__HostInfo *info)
{
	return says_cluster(info) && has_cluster(state) &&
	       !memcmp(info->cluster.data, state->cluster, sizeof(state->cluster));
}

/* ---- at the start ---- */

/* The first daemon of a cluster, or one that was central before. Under a new name it counts as another host.
 */
static int central_found(struct cluster *cluster, struct registry_state *state, struct err *err)
{
	state->central = true;
	if (!has_cluster(state) &&
	    getrandom(state->cluster, sizeof(state->cluster), 0) != sizeof(state->cluster))
		return err_sys(err, "make a cluster");
	if (state->host[0] && strcmp(state->host, cluster->options->name) != 0)
		state->term++;
	strcpy(state->host, cluster->options->name);
	return 0;
}

/* The options differ from the stored ones. */
static int central_apply_join(struct cluster *cluster, struct registry_state *state, struct err *err)
{
	const char *told = cluster->options->join;

	if (told[0])
		*state = (struct registry_state){.term = 0};
	else if (!state->central && state->host[0])
		return err_set(
			err, -EINVAL,
			"this host has joined a cluster, the central host of which is %s; start it with "
			"--join, and if that one is lost for good `pbeamctl hosts --take-over` makes this "
			"one the central one; to begin another cluster remove .cluster in the state "
			"directory",
			state->host);
	strcpy(state->told, told);
	return 0;
}

static bool is_other(const struct registry_state *a, const struct registry_state *b)
{
	return strcmp(a->host, b->host) != 0 || strcmp(a->told, b->told) != 0;
}

int central_open(struct cluster *cluster, struct err *err)
{
	struct registry_state *state = &cluster->state, before;
	int r = registry_store_open(&cluster->store, err);

	if (r == 0)
		r = registry_store_state(&cluster->store, state, err);
	before = *state;
	if (r == 0 && strcmp(state->told, cluster->options->join) != 0)
		r = central_apply_join(cluster, state, err);
	if (r == 0 && (state->central || (!state->host[0] && !state->told[0])))
		r = central_found(cluster, state, err);
	cluster->central = state->central;
	if (r == 0 && (cluster->central || is_other(state, &before)))
		r = registry_store_know(&cluster->store, state, err);
	return r;
}

/* ---- its description ---- */

int central_describe(const struct cluster *cluster, Pbeam__HostInfo *self)
{
	const struct registry_state *state = &cluster->state;
	char address[CLUSTER_ADDRESS_MAX];

	self->central = cluster->central;
	self->term = state->term;
	if (!cluster->central || !host_listens(self, address))
		strcpy(address, state->host[0] ? cluster_central_address(cluster) : "");
	if (message_string(&self->central_host, state->host) < 0 ||
	    message_string(&self->central_address, address) < 0)
		return -ENOMEM;
	return has_cluster(state) ? message_bytes(&self->cluster, state->cluster, sizeof(state->cluster)) : 0;
}

static void write_down(struct cluster *cluster)
{
	struct err err = ERR_INIT;

	if (registry_store_know(&cluster->store, &cluster->state, &err) < 0)
		log_error("cannot store which host is central: %s", err.text);
	if (central_describe(cluster, cluster->self) < 0)
		log_error("cannot describe the central host: no memory");
}

/* ---- descriptions of other hosts ---- */

static bool is_joined(const struct peer *peer)
{
	return peer->address[0] && !strcmp(peer->address, cluster_central_address(peer->cluster));
}

int central_check(const struct peer *peer, const Pbeam__HostInfo *info, struct err *err)
{
	const struct cluster *cluster = peer->cluster;
	bool same = is_same(&cluster->state, info);

	if (cluster->central && info->central && !same)
		return err_set(
			err, -EINVAL,
			"it is the central daemon of another cluster, as host %s is of its own; start one of "
			"the two with --join",
			cluster->options->name);
	if (says_cluster(info) && has_cluster(&cluster->state) && !same)
		return err_set(err, -EINVAL,
			       "it is of another cluster than host %s; to have one of the two join the other "
			       "end its "
			       "pbeamd, remove .cluster in its state directory and start it with --join",
			       cluster->options->name);
	if (!has_cluster(&cluster->state) && is_joined(peer) && !info->central && !info->central_address[0])
		return err_set(err, -EINVAL,
			       "it is not the central daemon of its cluster, which is to be joined");
	return 0;
}

static bool central_is_newer(const struct registry_state *state, const Pbeam__HostInfo *info)
{
	return info->term > state->term ||
	       (info->term == state->term && strcmp(info->central_host, state->host) > 0);
}

/* The address by which this host reaches the central one, as far as is known. */
static void find_address(struct cluster *cluster, const char *said, char address[CLUSTER_ADDRESS_MAX])
{
	const struct host *host = host_find(cluster, cluster->state.host);

	if (!host || !host->info || !host_listens(host->info, address))
		strcpy(address, said);
}

static void central_follow(struct cluster *cluster, const Pbeam__HostInfo *info)
{
	struct registry_state *state = &cluster->state;
	bool first = !has_cluster(state), was = cluster->central;

	state->term = info->term;
	state->central = cluster->central = false;
	memcpy(state->cluster, info->cluster.data, sizeof(state->cluster));
	strcpy(state->host, info->central_host);
	if (first && info->central)
		state->address[0] = 0; /* it is where --join leads */
	else
		find_address(cluster, info->central_address, state->address);
	cluster->deposed = cluster->deposed || was;
	if (was)
		log_error("host %s has taken over: this host is not the central one any more, and what was "
			  "changed in its registry since then is forgotten",
			  state->host);
	else if (!first)
		log_warn("host %s has taken over: it is the central one now", state->host);
	write_down(cluster);
	registry_follow(cluster);
	cluster->join.at_ns = 0;
	peers_say(cluster);
}

/* The central host may have another address than before, or had none. The first address is that of --join. */
static void note_address(struct cluster *cluster, const Pbeam__HostInfo *info)
{
	char address[CLUSTER_ADDRESS_MAX];

	if (!cluster->state.address[0] || !host_listens(info, address) ||
	    !strcmp(address, cluster->state.address))
		return;
	strcpy(cluster->state.address, address);
	write_down(cluster);
}

void central_heard(struct peer *peer, const Pbeam__HostInfo *info)
{
	struct cluster *cluster = peer->cluster;
	struct registry_state *state = &cluster->state;

	if (!says_cluster(info) || !info->central_host[0] ||
	    (has_cluster(state) ? !is_same(state, info) : !is_joined(peer)))
		return;
	if (has_cluster(state) && !central_is_newer(state, info)) {
		if (!cluster->central && cluster_is_central(cluster, peer->name) && info->central)
			note_address(cluster, info);
		return;
	}
	if (!strcmp(info->central_host, cluster->options->name))
		log_error(
			"host %s considers this host central, which it is not; `pbeamctl hosts --take-over` "
			"makes it so",
			peer->name);
	else
		central_follow(cluster, info);
}

void central_become(struct cluster *cluster, const struct registry_state *state)
{
	cluster->state = *state;
	cluster->central = true;
	cluster->deposed = false;
	if (central_describe(cluster, cluster->self) < 0)
		log_error("cannot describe the central host: no memory");
	peers_say(cluster);
	registry_serve(cluster);
}
