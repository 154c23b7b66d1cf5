/* The registry from a host that is not the central one: requests go to the central daemon over the peer
 * channel, its changes come back over the same, in order. */
#include "pbeamd/registry/registry_remote.h"

#include <errno.h>
#include <stdlib.h>

#include "pbeamd/transport/cluster.h"
#include "pbeamd/transport/host.h"
#include "pbeamd/transport/peer.h"
#include "pbeamd/transport/remote_request.h"
#include "proto/message.h"

struct call {
	struct call *next;
	uint64_t id;
	registry_done_fn done;
	void *arg;
};

struct remote {
	struct cluster *cluster;
	struct call *calls;
	uint64_t next_id;
	registry_changed_fn changed;
	void *watcher;
};

static struct host *remote_registry_central(const struct remote *remote)
{
	struct host *host = host_find(remote->cluster, remote->cluster->state.host);

	return host && host->peer ? host : NULL;
}

static void remote_registry_ask(struct remote *remote, Pbeam__RegistryRequest *request, registry_done_fn done,
				void *arg)
{
	struct host *host = remote_registry_central(remote);
	struct call *call = host ? calloc(1, sizeof(*call)) : NULL;
	struct err err = ERR_INIT;

	if (!host)
		err_set(&err, -EHOSTUNREACH,
			"the central host of the cluster cannot be reached; if it is lost for good let "
			"another one be it: `pbeamctl hosts --take-over`");
	else if (!call)
		err_code(&err, -ENOMEM, "send a request to the central host");
	if (err.code) {
		registry_refuse(&err, done, arg);
		return;
	}
	*call = (struct call){.next = remote->calls, .id = ++remote->next_id, .done = done, .arg = arg};
	remote->calls = call;
	request->id = call->id;
	request->term = remote->cluster->state.term;
	if (peer_send(host, PBEAM__CHANNEL_MESSAGE__PEER_REGISTRY, &request->base) < 0) {
		remote->calls = call->next;
		free(call);
		err_code(&err, -ENOMEM, "send a request to the central host");
		registry_refuse(&err, done, arg);
	}
}

static void remote_lease(void *engine, const char *key, uint64_t count, const char *host,
			 registry_done_fn done, void *arg)
{
	Pbeam__RegistryRequest request = PBEAM__REGISTRY_REQUEST__INIT;

	request.operation = PBEAM__REGISTRY_REQUEST__OPERATION__LEASE;
	request.key = (char *)(uintptr_t)key;
	request.count = count;
	remote_registry_ask(engine, &request, done, arg);
}

static void remote_set(void *engine, Pbeam__RegistryRequest *const *sets, size_t n, const char *host,
		       registry_done_fn done, void *arg)
{
	Pbeam__RegistryRequest request = PBEAM__REGISTRY_REQUEST__INIT;

	request.operation = PBEAM__REGISTRY_REQUEST__OPERATION__SET;
	request.all = (Pbeam__RegistryRequest **)(uintptr_t)sets;
	request.n_all = n;
	remote_registry_ask(engine, &request, done, arg);
}

static void remote_get(void *engine, const char *key, registry_done_fn done, void *arg)
{
	Pbeam__RegistryRequest request = PBEAM__REGISTRY_REQUEST__INIT;

	request.operation = PBEAM__REGISTRY_REQUEST__OPERATION__GET;
	request.key = (char *)(uintptr_t)key;
	remote_registry_ask(engine, &request, done, arg);
}

static void remote_list(void *engine, const char *prefix, registry_done_fn done, void *arg)
{
	Pbeam__RegistryRequest request = PBEAM__REGISTRY_REQUEST__INIT;

	request.operation = PBEAM__REGISTRY_REQUEST__OPERATION__LIST;
	request.key = (char *)(uintptr_t)prefix;
	remote_registry_ask(engine, &request, done, arg);
}

static void remote_watch(void *engine, registry_changed_fn changed, void *arg)
{
	struct remote *remote = engine;

	remote->changed = changed;
	remote->watcher = arg;
}

bool registry_remote_reply(struct registry *registry, const struct frame *frame)
{
	struct remote *remote = registry->engine;
	Pbeam__RegistryReply *reply =
		(Pbeam__RegistryReply *)frame_unpack(frame, &pbeam__registry_reply__descriptor, NULL);

	if (!reply)
		return false;
	for (struct call **p = &remote->calls; *p; p = &(*p)->next)
		if ((*p)->id == reply->id) {
			struct call *call = *p;

			*p = call->next;
			call->done(call->arg, reply);
			free(call);
			break;
		}
	message_free(reply);
	return true;
}

void registry_remote_changes(struct registry *registry, const Pbeam__RegistryChanges *changes)
{
	struct remote *remote = registry->engine;

	if (remote->changed)
		remote->changed(remote->watcher, changes);
}

void registry_remote_lost(struct registry *registry)
{
	struct remote *remote = registry->engine;
	struct err err = ERR_INIT;

	err_set(&err, -ECONNRESET,
		"the central host was lost before it replied; the request may or may not have been carried "
		"out");
	while (remote->calls) {
		struct call *call = remote->calls;

		remote->calls = call->next;
		registry_refuse(&err, call->done, call->arg);
		free(call);
	}
}

static void engine_close(void *engine)
{
	struct registry registry = {NULL, engine};

	registry_remote_lost(&registry);
	free(engine);
}

int registry_remote_open(struct registry *out, struct cluster *cluster, struct err *err)
{
	static const struct registry_operations operations = {remote_lease, remote_set,	  remote_get,
							      remote_list,  remote_watch, engine_close};
	struct remote *remote = calloc(1, sizeof(*remote));

	if (!remote)
		return err_code(err, -ENOMEM, "registry");
	remote->cluster = cluster;
	*out = (struct registry){&operations, remote};
	return 0;
}
