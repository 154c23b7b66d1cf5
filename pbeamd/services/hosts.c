/* `pbeamctl hosts`: the hosts of the cluster as this one sees them, and what depends on each. */
#include "pbeamd/services/hosts.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "pbeamd/registry/registry_copy.h"
#include "pbeamd/services/take_over.h"
#include "pbeamd/transport/cluster.h"
#include "pbeamd/transport/connection.h"
#include "pbeamd/transport/host.h"
#include "pbeamd/transport/host_info.h"
#include "pbeamd/transport/server.h"
#include "proto/message.h"

/* A copy of a host's description, with the state that this host knows. */
static int hosts_add_host(Pbeam__HostList *list, const struct host *host)
{
	Pbeam__HostInfo *info = message_add(list, hosts, pbeam__host_info__descriptor);
	const Pbeam__HostInfo *said = host->info;

	if (!info || message_string(&info->name, host->name) < 0)
		return -ENOMEM;
	info->state = host_is_up(host) ? PBEAM__HOST_INFO__STATE__UP : PBEAM__HOST_INFO__STATE__LOST;
	if (!said)
		return 0;
	info->port = said->port;
	info->processors = said->processors;
	info->memory_total = said->memory_total;
	info->memory_free = said->memory_free;
	info->load = said->load;
	info->processes = said->processes;
	info->central = said->central;
	info->seen_ns = said->seen_ns;
	info->id = said->id;
	info->xcr0 = said->xcr0;
	for (size_t i = 0; i < said->n_addresses; i++)
		if (message_append_string(&info->addresses, &info->n_addresses, said->addresses[i]) < 0)
			return -ENOMEM;
	for (size_t i = 0; i < said->n_depends; i++)
		if (message_append_string(&info->depends, &info->n_depends, said->depends[i]) < 0)
			return -ENOMEM;
	if (message_string(&info->address, said->address) < 0 ||
	    message_string(&info->kernel, said->kernel) < 0 ||
	    message_string(&info->machine, said->machine) < 0 ||
	    message_string(&info->version, said->version) < 0 ||
	    message_bytes(&info->vdso_digest, said->vdso_digest.data, said->vdso_digest.len) < 0)
		return -ENOMEM;
	return 0;
}

struct dependants {
	Pbeam__HostInfo *info;
	bool failed;
};

static void add_dependant(struct dependants *all, const char *vpid, const char *where, const char *what)
{
	char text[256];

	snprintf(text, sizeof(text), "vpid %s on host %s: %s", vpid, where, what);
	if (message_append_string(&all->info->depends, &all->info->n_depends, text) < 0)
		all->failed = true;
}

/* Processes elsewhere that have their parent or console here. */
static void hosts_count_place(void *arg, const Pbeam__RegistryEntry *entry)
{
	struct dependants *all = arg;
	Pbeam__Place *place = pbeam__place__unpack(NULL, entry->value.len, entry->value.data);
	const char *vpid = entry->key + strlen("vpid/"), *name = all->info->name;

	if (place && strcmp(place->host, name) != 0) {
		if (!strcmp(place->stub_host, name))
			add_dependant(all, vpid, place->host, "its parent is here");
		if (!strcmp(place->home, name))
			add_dependant(all, vpid, place->host, "its console is here");
	}
	message_free(place);
}

/* Processes here that are frozen until the central host decides whether they have moved. */
static void add_undecided(const struct cluster *cluster, struct dependants *all)
{
	auto_free struct name_process *list = NULL;
	int n = names_snapshot(cluster->server->names, (struct rpid){0}, &list);
	char vpid[16];

	all->failed = all->failed || n < 0;
	for (int i = 0; i < n; i++) {
		if (list[i].state != NAME_STATE_FROZEN || !list[i].undecided)
			continue;
		snprintf(vpid, sizeof(vpid), "%d", list[i].vpid.n);
		add_dependant(all, vpid, cluster->options->name,
			      "frozen until this host reports whether it has moved");
	}
}

static int add_dependants(const struct cluster *cluster, Pbeam__HostList *list)
{
	struct dependants all = {NULL, false};

	for (size_t i = 0; i < list->n_hosts; i++) {
		all.info = list->hosts[i];
		registry_copy_each(cluster->copy, "vpid/", hosts_count_place, &all);
		if (all.info->central)
			add_undecided(cluster, &all);
	}
	return all.failed ? -ENOMEM : 0;
}

/* A host in no cluster is described as the only one of its own. */
static Pbeam__HostInfo *hosts_describe_alone(struct server *server)
{
	struct cluster_options options = {.listen = ""};
	struct cluster alone = {.calls = server->calls->cluster,
				.server = server,
				.options = &options,
				.listener = -1,
				.central = true};

	if (gethostname(options.name, sizeof(options.name) - 1) < 0)
		strcpy(options.name, "localhost");
	return host_info_new(&alone);
}

/* A host that was central gets a note. */
static int add_notes(const struct cluster *cluster, Pbeam__HostList *list)
{
	char text[320];

	if (!cluster->deposed)
		return 0;
	snprintf(text, sizeof(text),
		 "host %s has taken over: this host is not the central one any more, and what was "
		 "changed in its registry since then is forgotten",
		 cluster->state.host);
	return message_append_string(&list->notes, &list->n_notes, text);
}

static int list_hosts(struct connection *connection, struct err *err)
{
	struct cluster *cluster = connection->server->cluster;
	Pbeam__HostInfo *self = cluster ? cluster->self : hosts_describe_alone(connection->server);
	Pbeam__HostList *list = message_new(&pbeam__host_list__descriptor);
	struct host here = {.info = self, .heard_ns = io_now_ns(CLOCK_MONOTONIC)};
	int r = self && list ? 0 : -ENOMEM;

	if (r == 0 && cluster)
		host_info_refresh(cluster, self);
	if (r == 0) {
		snprintf(here.name, sizeof(here.name), "%s", self->name);
		r = hosts_add_host(list, &here);
	}
	for (const struct host *host = cluster ? cluster->hosts : NULL; host && r == 0; host = host->next)
		r = hosts_add_host(list, host);
	for (size_t i = 0; cluster && i < list->n_hosts; i++)
		list->hosts[i]->central = cluster_is_central(cluster, list->hosts[i]->name);
	if (r == 0 && cluster)
		r = add_dependants(cluster, list);
	if (r == 0 && cluster)
		r = add_notes(cluster, list);
	if (r == 0)
		connection_reply(connection, &list->base);
	else
		err_code(err, r, "list hosts");
	message_free(list);
	if (!cluster)
		message_free(self);
	return r;
}

int handle_hosts(struct connection *connection, const ProtobufCMessage *message, struct err *err)
{
	const Pbeam__HostsRequest *wish = (const Pbeam__HostsRequest *)message;

	if (wish->take_over)
		return take_over_begin(connection, err);
	return wish->remove[0] ? hosts_remove(connection, wish->remove, err) : list_hosts(connection, err);
}
