/*
 * Addresses that have moved to this host: an entry address/... is removed when no socket is bound there any
 * more. No event reports that a socket was closed, so the kernel's sockets are listed (sock_diag(7)) once a
 * second while there are entries. An entry without a socket twice in a row is removed; a later bind writes it
 * again.
 *
 * Linux 6.8 and later reports sockets that are bound and do not listen yet (TCP_BOUND_INACTIVE), an older
 * kernel once they listen.
 */
#include "pbeamd/services/addresses.h"

#include <errno.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/log.h"
#include "base/sock_diag.h"
#include "namespace/address_entry.h"
#include "pbeamd/registry/registry_copy.h"
#include "pbeamd/registry/registry_engine.h"
#include "pbeamd/transport/cluster.h"

enum { EVERY_NS = 1000000000, BOUND_INACTIVE = 13 /* TCP_BOUND_INACTIVE */, LISTENS = 10, MISSED_MAX = 256 };

struct addresses {
	struct cluster *cluster;
	uint64_t looked_ns;
	char *missed[MISSED_MAX]; /* keys without a socket at the last look */
	size_t nmissed;
};

static int on_socket(void *arg, const struct nlmsghdr *header)
{
	return 1;
}

/* True if the kernel has a bound socket of this protocol, family and port, or does not reply. */
static bool is_bound_in(int protocol, int family, uint16_t port)
{
	const struct inet_diag_req_v2 request = {
		.sdiag_family = (uint8_t)family,
		.sdiag_protocol = (uint8_t)protocol,
		.idiag_states = protocol == IPPROTO_TCP ? 1u << LISTENS | 1u << BOUND_INACTIVE : ~0u,
		.id.idiag_sport = htons(port)};

	return sock_diag_query(&request, sizeof(request), NLM_F_DUMP, on_socket, NULL) != 0;
}

static bool addresses_is_bound(const struct name_address *address)
{
	uint16_t port = address_port(&address->real);

	return is_bound_in(address->protocol, AF_INET, port) ||
	       is_bound_in(address->protocol, AF_INET6, port);
}

struct look {
	struct addresses *addresses;
	char *missing[MISSED_MAX];
	size_t n;
};

static void addresses_check_entry(void *arg, const Pbeam__RegistryEntry *entry)
{
	struct look *look = arg;
	struct address_entry *at = calloc(1, sizeof(*at));
	const char *own = look->addresses->cluster->options->name;

	if (at && look->n < MISSED_MAX && address_entry_parse(entry, at) == 0 &&
	    !strcmp(at->address.host, own) && !addresses_is_bound(&at->address) &&
	    (look->missing[look->n] = strdup(entry->key)) != NULL)
		look->n++;
	free(at);
}

static void addresses_on_done(void *arg, const Pbeam__RegistryReply *reply)
{
	if (reply->code < 0 && reply->code != -EEXIST)
		log_info("an address stays in the registry: %s", reply->text);
}

static void remove_entry(struct cluster *cluster, const char *key)
{
	Pbeam__RegistryRequest request = PBEAM__REGISTRY_REQUEST__INIT;
	const Pbeam__RegistryEntry *entry = registry_copy_get(cluster->copy, key);
	char text[ADDRESS_KEY_MAX];

	if (!entry || strlen(key) >= sizeof(text))
		return;
	strcpy(text, key); /* the change may free the copy's key */
	request.operation = PBEAM__REGISTRY_REQUEST__OPERATION__SET;
	request.key = text;
	request.expected = entry->version;
	request.remove = true;
	registry_ask(cluster, &request, addresses_on_done, NULL);
}

static bool was_missed(const struct addresses *addresses, const char *key)
{
	for (size_t i = 0; i < addresses->nmissed; i++)
		if (!strcmp(addresses->missed[i], key))
			return true;
	return false;
}

static void addresses_forget(struct addresses *addresses)
{
	for (size_t i = 0; i < addresses->nmissed; i++)
		free(addresses->missed[i]);
	addresses->nmissed = 0;
}

void addresses_tick(struct cluster *cluster, uint64_t now_ns)
{
	struct addresses *addresses = cluster->addresses;
	struct look look = {.addresses = addresses};

	if (!registry_copy_ready(cluster->copy) || now_ns - addresses->looked_ns < EVERY_NS ||
	    !names_address_any(cluster->server->names))
		return;
	addresses->looked_ns = now_ns;
	registry_copy_each(cluster->copy, ADDRESS_PREFIX, addresses_check_entry, &look);
	for (size_t i = 0; i < look.n; i++)
		if (was_missed(addresses, look.missing[i]))
			remove_entry(cluster, look.missing[i]);
	addresses_forget(addresses);
	bytes_copy(addresses->missed, look.missing, look.n * sizeof(look.missing[0]));
	addresses->nmissed = look.n;
}

int addresses_open(struct cluster *cluster, struct err *err)
{
	cluster->addresses = calloc(1, sizeof(*cluster->addresses));
	if (!cluster->addresses)
		return err_code(err, -ENOMEM, "addresses");
	cluster->addresses->cluster = cluster;
	return 0;
}

void addresses_close(struct cluster *cluster)
{
	if (cluster->addresses)
		addresses_forget(cluster->addresses);
	free(cluster->addresses);
	cluster->addresses = NULL;
}
