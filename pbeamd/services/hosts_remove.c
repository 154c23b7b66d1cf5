/*
 * Removes a host that is lost for good: its entry, the numbers that it held, and the places and addresses
 * there. Processes that had left it keep theirs.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "pbeamd/registry/registry_copy.h"
#include "pbeamd/registry/registry_engine.h"
#include "pbeamd/services/hosts.h"
#include "pbeamd/transport/cluster.h"
#include "pbeamd/transport/connection.h"
#include "pbeamd/transport/host.h"
#include "pbeamd/transport/server.h"
#include "proto/message.h"

struct removal {
	const char *host;
	Pbeam__RegistryRequest *request;
	bool failed;
};

static void hosts_remove_add_key(struct removal *removal, const Pbeam__RegistryEntry *entry)
{
	Pbeam__RegistryRequest *set = message_add(removal->request, all, pbeam__registry_request__descriptor);

	if (!set || message_string(&set->key, entry->key) < 0) {
		removal->failed = true;
		return;
	}
	set->expected = entry->version;
	set->remove = true;
}

static void add_block(void *arg, const Pbeam__RegistryEntry *entry)
{
	struct removal *removal = arg;

	if (entry->value.len == strlen(removal->host) &&
	    bytes_equal(entry->value.data, removal->host, entry->value.len))
		hosts_remove_add_key(removal, entry);
}

static void hosts_remove_add_place(void *arg, const Pbeam__RegistryEntry *entry)
{
	struct removal *removal = arg;
	Pbeam__Place *place = pbeam__place__unpack(NULL, entry->value.len, entry->value.data);

	if (place && !strcmp(place->host, removal->host))
		hosts_remove_add_key(removal, entry);
	message_free(place);
}

static void hosts_remove_add_address(void *arg, const Pbeam__RegistryEntry *entry)
{
	struct removal *removal = arg;
	Pbeam__AddressPlace *place = pbeam__address_place__unpack(NULL, entry->value.len, entry->value.data);

	if (place && !strcmp(place->host, removal->host))
		hosts_remove_add_key(removal, entry);
	message_free(place);
}

/* The numbers of processes elsewhere stay taken: their entries vpid/N hold them, whichever host has the
 * block. */
static Pbeam__RegistryRequest *hosts_remove_new_request(const struct cluster *cluster, const char *host)
{
	struct removal removal = {host, message_new(&pbeam__registry_request__descriptor), false};
	const Pbeam__RegistryEntry *entry;

	if (!removal.request)
		return NULL;
	removal.request->operation = PBEAM__REGISTRY_REQUEST__OPERATION__SET;
	entry = registry_copy_getf(cluster->copy, "host/%s", host);
	if (entry)
		hosts_remove_add_key(&removal, entry);
	registry_copy_each(cluster->copy, "block/", add_block, &removal);
	registry_copy_each(cluster->copy, "vpid/", hosts_remove_add_place, &removal);
	registry_copy_each(cluster->copy, "address/", hosts_remove_add_address, &removal);
	if (removal.failed) {
		message_free(removal.request);
		return NULL;
	}
	return removal.request;
}

static void on_removed(struct connection *connection, const Pbeam__RegistryReply *reply)
{
	Pbeam__HostList none = PBEAM__HOST_LIST__INIT;
	struct err err = ERR_INIT;

	if (reply->code < 0) {
		err_set(&err, reply->code, "%s; look and ask again", reply->text);
		connection_refuse(connection, &err);
	} else {
		connection_reply(connection, &none.base);
	}
}

int hosts_remove(struct connection *connection, const char *name, struct err *err)
{
	struct cluster *cluster = connection->server->cluster;
	struct host *host;
	Pbeam__RegistryRequest *request;
	int r = cluster_need(connection->server, err);

	if (r < 0)
		return r;
	if (!strcmp(name, cluster->options->name))
		return err_set(err, -EBUSY, "host %s: this is it; end its pbeamd and remove it from another",
			       name);
	host = host_find(cluster, name);
	if (!host)
		return err_set(err, -ENOENT, "there is no host %s; `pbeamctl hosts` lists all", name);
	if (host_is_up(host))
		return err_set(err, -EBUSY, "host %s is up; end its pbeamd first", name);
	if (cluster_is_central(cluster, name))
		return err_set(
			err, -EBUSY,
			"host %s is the central one; if it is lost for good let another one be it first: "
			"`pbeamctl hosts --take-over` there",
			name);
	request = hosts_remove_new_request(cluster, name);
	if (!request)
		return err_code(err, -ENOMEM, "remove host %s", name);
	if (request->n_all)
		r = registry_ask_for(connection, request, on_removed, err);
	else
		r = err_set(err, -ENOENT, "there is no host %s; `pbeamctl hosts` lists all", name);
	message_free(request);
	return r;
}
