/* Writes the addresses that a program binds away from the host of its birth to the registry, through
 * pbeamd. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>

#include "base/cleanup.h"
#include "namespace/address_entry.h"
#include "proto/ask.h"
#include "proto/message.h"
#include "proto/rpc.h"

enum { PATIENCE_S = 5 };

static const char program[] = "scip " PBEAM_VERSION;

bool address_own(union name_sockaddr *out)
{
	Pbeam__HostList *hosts = NULL;
	bool found = ask_hosts(program, &hosts, NULL) == 0 && hosts->n_hosts && hosts->hosts[0]->address &&
		     address_from_text(hosts->hosts[0]->address, 0, out);

	message_free(hosts);
	return found;
}

static bool takes_v4(int fd, int family)
{
	int only = 0;
	socklen_t len = sizeof(only);

	return family == AF_INET || (getsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &only, &len) == 0 && !only);
}

bool address_reached(int fd, union name_sockaddr *out)
{
	socklen_t len = sizeof(*out);
	union name_sockaddr own;
	uint16_t port;

	memset(out, 0, sizeof(*out));
	if (getsockname(fd, &out->sa, &len) < 0)
		return false;
	if (!address_is_wildcard(out))
		return true;
	port = address_port(out);
	if (!address_own(&own) ||
	    (own.sa.sa_family == AF_INET ? !takes_v4(fd, out->sa.sa_family) : out->sa.sa_family != AF_INET6))
		return false;
	*out = own;
	address_set_port(out, port);
	return true;
}

static int register_ask(const Pbeam__RegistryRequest *request, Pbeam__RegistryReply **reply, struct err *err)
{
	auto_close int sock = ask_open(program, err);
	int r = sock;

	*reply = NULL;
	if (sock >= 0)
		rpc_set_timeout(sock, PATIENCE_S * 1000);
	if (r >= 0)
		r = ask_message(sock, PBEAM__DAEMON_REQUEST__DAEMON_REGISTRY, &request->base, NULL,
				&pbeam__registry_reply__descriptor, reply, err);
	if (r < 0)
		return r;
	return (*reply)->code < 0 ? err_set(err, (*reply)->code, "%s", (*reply)->text) : 0;
}

/* True if another process has this name and still runs. */
static bool is_another(struct names *names, const struct name_address *address, char *key,
		       const ProtobufCBinaryData *value)
{
	auto_free struct address_entry *entry = calloc(1, sizeof(*entry));
	Pbeam__RegistryEntry found = PBEAM__REGISTRY_ENTRY__INIT;
	struct name_process process;

	found.key = key;
	found.value = *value;
	if (!entry || address_entry_parse(&found, entry) < 0 || entry->address.vpid.n == address->vpid.n)
		return false;
	if (!address->vpid.n) /* the entry was this process's before */
		return strcmp(entry->address.host, address->host) != 0;
	return strcmp(entry->address.host, address->host) != 0 ||
	       names_process_get(names, entry->address.vpid, &process) == 0;
}

static int register_get(const struct name_address *address, char key[ADDRESS_KEY_MAX],
			Pbeam__RegistryReply **reply, struct err *err)
{
	Pbeam__RegistryRequest request = PBEAM__REGISTRY_REQUEST__INIT;
	int r = address_entry_key(address, key);

	*reply = NULL;
	if (r < 0)
		return err_code(err, r, "bind");
	request.operation = PBEAM__REGISTRY_REQUEST__OPERATION__GET;
	request.key = key;
	return register_ask(&request, reply, err);
}

int address_free(struct names *names, const struct name_address *address, uint64_t *version, struct err *err)
{
	Pbeam__RegistryReply *reply;
	char key[ADDRESS_KEY_MAX];
	int r = register_get(address, key, &reply, err);

	*version = 0;
	if (r == 0 && is_another(names, address, key, &reply->value))
		r = err_set(err, -EADDRINUSE, "%s is in use on another host", key);
	else if (r == 0)
		*version = reply->version;
	message_free(reply);
	if (r != -ENOENT)
		return r;
	err_clear(err);
	return 0;
}

int address_forget(const struct name_address *address, struct err *err)
{
	Pbeam__RegistryRequest request = PBEAM__REGISTRY_REQUEST__INIT;
	Pbeam__RegistryReply *reply;
	char key[ADDRESS_KEY_MAX];
	int r = register_get(address, key, &reply, err);

	if (r == 0) {
		request.operation = PBEAM__REGISTRY_REQUEST__OPERATION__SET;
		request.key = key;
		request.expected = reply->version;
		request.remove = true;
		message_free(reply);
		r = register_ask(&request, &reply, err);
	}
	message_free(reply);
	if (r != -ENOENT)
		return r;
	err_clear(err);
	return 0;
}

int address_renew(struct names *names, int protocol, const union name_sockaddr *name, const char *born,
		  int fd, struct err *err)
{
	auto_free struct address_entry *entry = calloc(1, sizeof(*entry));
	uint64_t version = 0;
	int r;

	if (!entry)
		return err_code(err, -ENOMEM, "bind");
	entry->address = (struct name_address){.protocol = protocol, .name = *name};
	snprintf(entry->address.born, sizeof(entry->address.born), "%s", born);
	if (!names_cluster(names, entry->address.host) || !address_reached(fd, &entry->address.real))
		return 0;
	r = address_free(names, &entry->address, &version, err);
	return r < 0 ? r : address_register(entry, !takes_v4(fd, name->sa.sa_family), version, err);
}

int address_register(struct address_entry *entry, bool v6_only, uint64_t version, struct err *err)
{
	Pbeam__RegistryRequest request = PBEAM__REGISTRY_REQUEST__INIT;
	Pbeam__RegistryReply *reply = NULL;
	Pbeam__HostList *hosts = NULL;
	const Pbeam__HostInfo *info = NULL;
	char key[ADDRESS_KEY_MAX];
	int r = ask_hosts(program, &hosts, err);

	for (size_t i = 0; r == 0 && i < hosts->n_hosts; i++)
		if (!strcmp(hosts->hosts[i]->name, entry->address.born))
			info = hosts->hosts[i];
	if (r == 0) {
		address_entry_name(entry, info, v6_only);
		r = address_entry_key(&entry->address, key);
	}
	if (r == 0)
		r = address_entry_pack(entry, &request.value);
	if (r == 0) {
		request.operation = PBEAM__REGISTRY_REQUEST__OPERATION__SET;
		request.key = key;
		request.expected = version;
		r = register_ask(&request, &reply, err);
	}
	free(request.value.data);
	message_free(reply);
	message_free(hosts);
	return r;
}
