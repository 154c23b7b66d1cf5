#include "scip/reconnect/reconnect_ports.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "namespace/address_entry.h"
#include "proto/message.h"
#include "scip/ends/end_address.h"
#include "scip/object/common.h"
#include "scip/object/socket.h"
#include "scip/reconnect/reconnect_hold.h"

/* ---- which ---- */

struct inos {
	uint64_t *v;
	size_t n;
};

static void add_ino(void *arg, const struct inet_address *own, const struct inet_address *peer, uint64_t ino,
		    uint32_t queued)
{
	struct inos *inos = arg;

	if (ino && object_append(inos->v, inos->n, ino) < 0)
		return; /* reconnect_ports_find() looks again after the freeze */
}

bool reconnect_ports_any(struct migrate_source *source)
{
	struct inos inos = {0};
	bool any = inet_diag_udp(add_ino, &inos) == 0 &&
		   reconnect_hold_any(source->names, source->job->keeper, inos.v, inos.n);

	free(inos.v);
	return any;
}

static bool is_udp(const struct object_source *of)
{
	int family = S_ISSOCK(of->st.st_mode) ? socket_option(of->local, SOL_SOCKET, SO_DOMAIN, -1) : -1;

	return (family == AF_INET || family == AF_INET6) &&
	       socket_option(of->local, SOL_SOCKET, SO_PROTOCOL, -1) == IPPROTO_UDP;
}

static bool is_elsewhere(const struct inet_address *at)
{
	union name_sockaddr address = {0};

	memcpy(&address, &at->any, at->len);
	if (at->any.sa_family == AF_INET ? IN_MULTICAST(ntohl(at->v4.sin_addr.s_addr))
					 : IN6_IS_ADDR_MULTICAST(&at->v6.sin6_addr))
		return false;
	return !address_is_loopback(&address);
}

static int add_port(struct reconnect_ports *ports, const struct object_source *of)
{
	struct reconnect_port port = {
		.ino = of->st.st_ino, .own.len = sizeof(port.own.v6), .peer.len = sizeof(port.peer.v6)};

	if (getsockname(of->local, &port.own.any, &port.own.len) < 0 || !inet_port(&port.own) ||
	    !is_elsewhere(&port.own))
		return 0;
	if (getpeername(of->local, &port.peer.any, &port.peer.len) < 0)
		port.peer.len = 0;
	return object_append(ports->v, ports->n, port);
}

/* True if the port's peer is another socket of the group. */
static bool is_within(struct object_dump *dump, const struct reconnect_port *port)
{
	const struct object_source *of;

	for (size_t i = 0; port->peer.len && (of = object_dump_source(dump, i)) != NULL; i++) {
		struct inet_address own = {.len = sizeof(own.v6)};

		if (!of->hidden && is_udp(of) && getsockname(of->local, &own.any, &own.len) == 0 &&
		    inet_covers(&own, &port->peer) && inet_is_local(&port->peer) > 0)
			return true;
	}
	return false;
}

struct sharing {
	const struct reconnect_port *port;
	bool shared;
};

static void on_port_socket(void *arg, const struct inet_address *own, const struct inet_address *peer,
			   uint64_t ino, uint32_t queued)
{
	struct sharing *sharing = arg;

	if (ino != sharing->port->ino && inet_covers(own, &sharing->port->own))
		sharing->shared = true;
}

/* True if no other socket is bound to the address of this connected one. */
static bool is_alone(struct names *names, const struct reconnect_port *port)
{
	struct sharing sharing = {.port = port};
	union name_sockaddr own = {0};
	struct name_address found;
	struct name_socket name;

	memcpy(&own, &port->own.any, port->own.len);
	if (names_socket_get(names, port->ino, &name) == 0 && name.own.sa.sa_family &&
	    memcmp(&name.own, &own, port->own.len) != 0)
		return names_address_find(names, IPPROTO_UDP, &name.own.sa, NULL, &found) == 0 &&
		       !memcmp(&found.real, &own, port->own.len);
	return inet_diag_udp(on_port_socket, &sharing) == 0 && !sharing.shared;
}

void reconnect_ports_keep(struct reconnect_ports *ports, const bool *wanted)
{
	size_t kept = 0;

	for (size_t i = 0; i < ports->n; i++)
		if (wanted[i])
			ports->v[kept++] = ports->v[i];
	ports->n = kept;
}

int reconnect_ports_find(struct reconnect_ports *ports, struct migrate_source *source,
			 struct object_dump *dump, struct err *err)
{
	auto_free bool *wanted = NULL;
	const struct object_source *of;
	int r = 0;

	for (size_t i = 0; r == 0 && (of = object_dump_source(dump, i)) != NULL; i++) {
		if (of->hidden || object_dump_console_stream(dump, of) >= 0 || !is_udp(of))
			continue;
		r = object_append(ports->group, ports->ngroup, of->st.st_ino);
		if (r == 0)
			r = add_port(ports, of);
	}
	wanted = calloc(ports->n + 1, sizeof(*wanted));
	if (r < 0 || !wanted)
		return err_code(err, -ENOMEM, "UDP ports");
	for (size_t i = 0; i < ports->n; i++) {
		wanted[i] = !is_within(dump, &ports->v[i]);
		ports->v[i].alone =
			wanted[i] && ports->v[i].peer.len && is_alone(source->names, &ports->v[i]);
	}
	reconnect_ports_keep(ports, wanted);
	return 0;
}

/* ---- requests and replies ---- */

static const Pbeam__HostInfo *host_by_name(const Pbeam__HostList *hosts, const char *name)
{
	for (size_t i = 0; i < hosts->n_hosts; i++)
		if (!strcmp(hosts->hosts[i]->name, name))
			return hosts->hosts[i];
	return NULL;
}

/* Adds the addresses of `host` (this one, or the one where the socket was bound) at which callers may know
 * the port. */
static int add_called(Pbeam__ReconnectPort *out, const union name_sockaddr *bound,
		      const Pbeam__HostInfo *host)
{
	auto_free struct address_entry *entry = calloc(1, sizeof(*entry));
	int r = entry ? 0 : -ENOMEM;

	if (r < 0)
		return r;
	entry->address.name = *bound;
	address_entry_name(entry, host, false);
	for (size_t i = 0; i < entry->n && r == 0; i++)
		if (!address_is_loopback(&entry->aliases[i]))
			r = message_append_bytes(&out->addresses, &out->n_addresses, &entry->aliases[i],
						 address_size(&entry->aliases[i]));
	return r;
}

/* Describes the port by its real address and by its name: callers that were not reconnected at its last move
 * use the name. */
static int port_describe(const struct reconnect_port *port, const struct migrate_source *source,
			 const Pbeam__HostList *hosts, Pbeam__ReconnectPort *out)
{
	union name_sockaddr own = {0};
	struct name_socket name;
	int r;

	memcpy(&own, &port->own.any, port->own.len);
	r = add_called(out, &own, hosts->n_hosts ? hosts->hosts[0] : NULL);
	if (r == 0 && names_socket_get(source->names, port->ino, &name) == 0 && name.own.sa.sa_family)
		r = add_called(out, &name.own, host_by_name(hosts, name.born));
	if (r == 0 && port->peer.len)
		r = message_bytes(&out->peer, &port->peer.any, port->peer.len);
	return r;
}

int reconnect_ports_describe(const struct reconnect_ports *ports, const struct migrate_source *source,
			     const Pbeam__HostList *hosts, Pbeam__ReconnectRequest *request)
{
	const Pbeam__HostInfo *there = host_by_name(hosts, source->host);
	union name_sockaddr address;
	int r = 0;

	if (!ports->n || !there || !there->address || !address_from_text(there->address, 0, &address))
		return 0;
	r = message_bytes(&request->host, &address, address_size(&address));
	for (size_t i = 0; i < ports->ngroup && r == 0; i++)
		r = message_append_u64(&request->group, &request->n_group, ports->group[i]);
	for (size_t i = 0; i < ports->n && r == 0; i++) {
		Pbeam__ReconnectPort *out = message_add(request, ports, pbeam__reconnect_port__descriptor);

		r = out ? port_describe(&ports->v[i], source, hosts, out) : -ENOMEM;
	}
	return r;
}

int reconnect_ports_take(struct reconnect_ports *ports, const Pbeam__ReconnectReply *reply)
{
	int held = 0, r = 0;

	for (size_t i = 0; i < ports->n && i < reply->n_callers && r == 0; i++) {
		const Pbeam__ReconnectCallers *callers = reply->callers[i];
		struct reconnect_port *port = &ports->v[i];

		held += callers->answers || callers->n_connected;
		port->direct = port->direct || (callers->answers && (!callers->calls || port->alone));
		for (size_t k = 0; k < callers->n_connected && r == 0; k++)
			r = message_append_bytes(&port->callers, &port->ncallers, callers->connected[k].data,
						 callers->connected[k].len);
	}
	return r < 0 ? r : held;
}

static const union name_sockaddr *port_place_of(const struct migrate_source *source, uint64_t ino)
{
	for (size_t i = 0; i < source->naddresses; i++)
		if (source->address_inos[i] == ino)
			return &source->addresses[i].address.real;
	return NULL;
}

int reconnect_ports_lead(const struct reconnect_ports *ports, const struct migrate_source *source,
			 Pbeam__ReconnectRequest *request, struct err *err)
{
	for (size_t i = 0; i < ports->n; i++) {
		const struct reconnect_port *port = &ports->v[i];
		const union name_sockaddr *real = port_place_of(source, port->ino);

		if (port->peer.len && !port->direct)
			real = NULL;
		else if (!real && port->direct)
			return err_set(err, -EADDRNOTAVAIL,
				       "a connected UDP socket has no address on host %s", source->host);
		if (real && i < request->n_ports &&
		    message_bytes(&request->ports[i]->address, real, address_size(real)) < 0)
			return err_code(err, -ENOMEM, "UDP ports");
	}
	return 0;
}

int reconnect_ports_dump(const struct reconnect_ports *ports, struct migrate_source *source,
			 struct object_dump *dump, const struct object_source *of, Pbeam__Object *out,
			 struct err *err)
{
	const struct reconnect_port *port = of->hidden ? NULL : reconnect_ports_of(ports, of->st.st_ino);
	int r;

	if (!port || !port->direct)
		return 0;
	r = object_dump_as_usual(dump, of, out, err);
	if (r == 0)
		r = address_leaves(source, out, of->holder_vpid, err);
	if (r < 0)
		return r;
	source->addresses[source->naddresses - 1].unlisted = !port->alone;
	r = port->alone ? 0 : message_string(&out->udp->name_host, "");
	if (r == 0)
		r = external_mark(out, &address_provider, "", 0);
	return r < 0 ? err_code(err, r, "record a UDP socket") : 1;
}

const struct reconnect_port *reconnect_ports_of(const struct reconnect_ports *ports, uint64_t ino)
{
	for (size_t i = 0; ports && i < ports->n; i++)
		if (ports->v[i].ino == ino)
			return &ports->v[i];
	return NULL;
}

void reconnect_ports_free(struct reconnect_ports *ports)
{
	for (size_t i = 0; i < ports->n; i++) {
		for (size_t k = 0; k < ports->v[i].ncallers; k++)
			free(ports->v[i].callers[k].data);
		free(ports->v[i].callers);
	}
	free(ports->v);
	free(ports->group);
	memset(ports, 0, sizeof(*ports));
}
