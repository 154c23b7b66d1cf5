#include "scip/ends/end_address.h"

#include <errno.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "namespace/address_entry.h"
#include "proto/ask.h"
#include "proto/message.h"
#include "scip/object/common.h"
#include "scip/object/object_dump.h"
#include "scip/object/object_end.h"
#include "scip/object/socket.h"
#include "scip/object/tcp_look.h"

static const char program[] = "scip " PBEAM_VERSION;

static int address_malformed(struct err *err)
{
	return err_set(err, -EBADMSG, "the record of a bound socket is malformed");
}

static bool parse_name(const ProtobufCBinaryData *bytes, union name_sockaddr *out)
{
	struct inet_address address;

	memset(out, 0, sizeof(*out));
	if (!inet_address_parse(bytes, &address))
		return false;
	memcpy(out, &address.any, address.len);
	return true;
}

static bool v6_only(const Pbeam__SocketOptions *options)
{
	for (size_t i = 0; options && i < options->n_options; i++)
		if (options->options[i]->level == IPPROTO_IPV6 && options->options[i]->name == IPV6_V6ONLY &&
		    options->options[i]->value.len == sizeof(int))
			return options->options[i]->value.data[0] != 0;
	return false;
}

/* ---- source ---- */

static int name_it(const struct object_address *bound, struct address_entry *entry, struct err *err)
{
	Pbeam__HostList *hosts = NULL;
	const Pbeam__HostInfo *info = NULL;
	int r = ask_hosts(program, &hosts, err);

	for (size_t i = 0; r == 0 && i < hosts->n_hosts; i++)
		if (!strcmp(hosts->hosts[i]->name, entry->address.born))
			info = hosts->hosts[i];
	if (r == 0) {
		union name_sockaddr called;

		address_entry_name(entry, info, v6_only(bound->options));
		called = entry->n ? entry->aliases[0] : entry->address.name;
		if (!bound->connected && message_bytes(bound->called, &called, address_size(&called)) < 0)
			r = err_code(err, -ENOMEM, "addresses");
	}
	message_free(hosts);
	return r;
}

/* Sets the socket's name, which is its address if it has none yet, and the entry for the registry. */
static int name_bound(struct object_address *bound, const char *own, struct address_entry *entry,
		      struct err *err)
{
	int r = 0;

	if (!bound->name->len) {
		r = message_bytes(bound->name, bound->local->data, bound->local->len);
		if (r == 0)
			r = message_string(bound->host, own);
	}
	memset(entry, 0, sizeof(*entry));
	entry->address.protocol = bound->protocol;
	if (r < 0)
		return err_code(err, r, "addresses");
	if (!parse_name(bound->name, &entry->address.name) ||
	    strlen(*bound->host) >= sizeof(entry->address.born))
		return err_set(err, -EPROTO, "the name of a socket is malformed");
	strcpy(entry->address.born, *bound->host);
	return name_it(bound, entry, err);
}

int address_leaves(struct migrate_source *source, Pbeam__Object *object, struct vpid vpid, struct err *err)
{
	struct object_address bound;
	struct address_entry *entries =
		reallocarray(source->addresses, source->naddresses + 1, sizeof(*entries));
	struct address_entry *entry;
	char own[NAME_TEXT_MAX] = "";
	uint64_t *inos;
	int r;

	if (!entries)
		return err_code(err, -ENOMEM, "addresses");
	source->addresses = entries;
	if (!object_address(object, &bound))
		return address_malformed(err);
	inos = reallocarray(source->address_inos, source->naddresses + 1, sizeof(*inos));
	if (!inos)
		return err_code(err, -ENOMEM, "addresses");
	source->address_inos = inos;
	(void)names_cluster(source->names, own);
	entry = &entries[source->naddresses];
	r = name_bound(&bound, own, entry, err);
	if (r < 0)
		return r;
	entry->address.vpid = vpid;
	snprintf(entry->address.host, sizeof(entry->address.host), "%s", source->host);
	inos[source->naddresses++] = bound.ino;
	return 0;
}

int address_mark_image(Pbeam__Manifest *manifest, struct err *err)
{
	struct address_entry entry;
	int r = 0;

	for (size_t i = 0; i < manifest->n_objects && r == 0; i++) {
		struct object_address bound;

		if (manifest->objects[i]->external || !object_address(manifest->objects[i], &bound) ||
		    !bound.named)
			continue;
		r = name_bound(&bound, manifest->host->place, &entry, err);
		if (r == 0)
			r = external_mark(manifest->objects[i], &address_provider, "", 0);
	}
	return r;
}

int address_name_senders(struct migrate_source *source, Pbeam__UdpSocket *socket, struct err *err)
{
	for (size_t i = 0; i < socket->n_queue; i++) {
		struct name_address found;
		union name_sockaddr real;

		if (!parse_name(&socket->queue[i]->source, &real) ||
		    names_address_find_real(source->names, IPPROTO_UDP, &real.sa, &found) < 0 ||
		    !address_in_family(&found.name, socket->family))
			continue;
		if (message_bytes(&socket->queue[i]->source, &found.name, address_size(&found.name)) < 0)
			return err_code(err, -ENOMEM, "addresses");
	}
	return 0;
}

/* True for a socket that is bound to a port of its own and not connected: peers may look it up. */
static bool is_bound(struct object_dump *dump, const struct object_source *of, bool listening)
{
	struct inet_address own = {.len = sizeof(own.v6)}, peer = {.len = sizeof(peer.v6)};
	const struct tcp_look *look = tcp_look_of(dump, of);
	int family = socket_option(of->local, SOL_SOCKET, SO_DOMAIN, -1);

	if (look)
		return inet_port(&look->own) &&
		       (look->kind == TCP_KIND_IDLE || (listening && look->kind == TCP_KIND_LISTENS));
	return (family == AF_INET || family == AF_INET6) &&
	       socket_option(of->local, SOL_SOCKET, SO_PROTOCOL, -1) == IPPROTO_UDP &&
	       getsockname(of->local, &own.any, &own.len) == 0 && inet_port(&own) &&
	       getpeername(of->local, &peer.any, &peer.len) < 0;
}

int address_dump(struct migrate_source *source, struct object_dump *dump, const struct object_source *of,
		 bool listening, Pbeam__Object *out, struct err *err)
{
	int r;

	if (of->hidden || !S_ISSOCK(of->st.st_mode) || object_dump_console_stream(dump, of) >= 0 ||
	    !is_bound(dump, of, listening))
		return 0;
	r = object_dump_as_usual(dump, of, out, err);
	if (r == 0)
		r = address_leaves(source, out, of->holder_vpid, err);
	if (r == 0)
		r = external_mark(out, &address_provider, "", 0);
	return r < 0 ? r : 1;
}

/* Dumps sockets that need no bridge: bound, neither listening nor connected. */
static int address_dump_bound(struct migrate_source *source, void **state, struct object_dump *dump,
			      const struct object_source *of, Pbeam__Object *out, struct err *err)
{
	return address_dump(source, dump, of, false, out, err);
}

/* Removes the addresses of sockets that the target has not restored. */
static int address_held(struct migrate_source *source, void **state, const ProtobufCBinaryData *rendezvous,
			struct err *err)
{
	Pbeam__AddressArrivals *all =
		pbeam__address_arrivals__unpack(NULL, rendezvous->len, rendezvous->data);
	size_t kept = 0;

	if (!all)
		return err_set(err, -EPROTO, "the target's list of addresses is malformed");
	for (size_t i = 0; i < source->naddresses; i++) {
		const Pbeam__AddressArrival *found = NULL;

		for (size_t k = 0; k < all->n_arrivals; k++)
			if (all->arrivals[k]->ino == source->address_inos[i])
				found = all->arrivals[k];
		if (!found || !parse_name(&found->real, &source->addresses[i].address.real))
			continue;
		source->addresses[kept] = source->addresses[i];
		source->address_inos[kept++] = source->address_inos[i];
	}
	source->naddresses = kept;
	message_free(all);
	return 0;
}

static void address_source_close(struct migrate_source *source, void **state)
{
	free(source->addresses);
	free(source->address_inos);
	source->addresses = NULL;
	source->address_inos = NULL;
	source->naddresses = 0;
}

/* ---- target ---- */

/* `beside`: the sockets that are replaced exist, and share a UDP port. */
static bool can_bind(int protocol, const union name_sockaddr *address, bool beside)
{
	auto_close int probe = socket(address->sa.sa_family,
				      (protocol == IPPROTO_TCP ? SOCK_STREAM : SOCK_DGRAM) | SOCK_CLOEXEC, 0);
	int on = 1;

	if (protocol == IPPROTO_TCP || beside)
		(void)!setsockopt(probe, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	return probe >= 0 && bind(probe, &address->sa, address_size(address)) == 0 &&
	       (protocol != IPPROTO_TCP || listen(probe, 1) == 0);
}

static void set_wildcard(union name_sockaddr *address, int family)
{
	memset(address, 0, sizeof(*address));
	address->sa.sa_family = (sa_family_t)family;
}

/* Chooses the address at which this host binds the socket of the record. */
static struct inet_address choose_address(const struct migrate_target *target,
					  const struct object_address *bound, bool beside)
{
	struct inet_address out = {0};
	char own[NAME_TEXT_MAX] = "";
	union name_sockaddr at;
	bool anywhere, home;

	(void)names_cluster(target->names, own);
	if (!parse_name(bound->name->len ? bound->name : bound->local, &at))
		set_wildcard(&at, bound->family);
	anywhere = address_is_wildcard(&at) || address_is_loopback(&at);
	/* a connected socket's name is used by its peer only and does not tell its host */
	home = !strcmp(own, *bound->host) || (bound->connected && !anywhere);
	if (!home || !can_bind(bound->protocol, &at, beside)) {
		if (!anywhere && (!address_own(&at) || !address_in_family(&at, bound->family)))
			set_wildcard(&at, bound->family);
		address_set_port(&at, 0);
	}
	out.len = address_size(&at);
	memcpy(&out.any, &at, out.len);
	return out;
}

int address_restore(const struct migrate_target *target, struct object_restore *restore,
		    const Pbeam__Object *object, int *fd, struct err *err)
{
	struct object_address bound;
	struct inet_address at;

	if (!object_address(object, &bound))
		return address_malformed(err);
	at = choose_address(target, &bound, object_restore_is_beside(restore));
	return object_end_ops_of(object)->restore_at(restore, object, &at, fd, err);
}

int address_arrived(struct migrate_target *target, const Pbeam__Object *object, int fd, struct err *err)
{
	struct inet_address at = {.len = sizeof(at.v6)}, name;
	struct object_address bound;
	struct name_socket socket = {0};
	Pbeam__AddressArrival *arrival;
	union name_sockaddr real;
	struct stat st;
	int r;

	if (!object_address(object, &bound) || !inet_address_parse(bound.name, &name) ||
	    getsockname(fd, &at.any, &at.len) < 0 || fstat(fd, &st) < 0)
		return 0;
	if (!target->arrivals)
		target->arrivals = message_new(&pbeam__address_arrivals__descriptor);
	if (!target->arrivals)
		return err_code(err, -ENOMEM, "addresses");
	if (at.len == name.len && !memcmp(&at.any, &name.any, at.len)) {
		memcpy(&real, &name.any, name.len); /* at home */
	} else {
		(void)parse_name(bound.name, &socket.own);
		(void)parse_name(bound.called, &socket.peer);
		snprintf(socket.born, sizeof(socket.born), "%s", *bound.host);
		/* the names of a connected socket are in the table already */
		r = bound.connected ? 0 : names_socket_set(target->names, st.st_ino, &socket);
		if (r < 0)
			return err_code(err, r, "keep the address of a socket");
		if (!address_reached(fd, &real))
			return 0;
	}
	arrival = message_add(target->arrivals, arrivals, pbeam__address_arrival__descriptor);
	if (!arrival || message_bytes(&arrival->real, &real, address_size(&real)) < 0)
		return err_code(err, -ENOMEM, "addresses");
	arrival->ino = bound.ino;
	return 0;
}

static int address_make(struct migrate_target *target, void **state, struct object_restore *restore,
			const Pbeam__Object *object, int *fd, struct err *err)
{
	const struct object_ops *ops = object_ops_of(object);
	int r = ops->check ? ops->check(restore, object, err) : 0;

	return r < 0 ? r : address_restore(target, restore, object, fd, err);
}

/* Updates the registry after a rollback, where the record of the commit does not. */
static void renew_entry(const struct migrate_target *target, const Pbeam__Object *object, int fd)
{
	struct inet_address at = {.len = sizeof(at.v6)}, name;
	struct name_address address = {0};
	struct object_address bound;
	struct err err = ERR_INIT;
	int r = 0;

	if (!object_address(object, &bound) || !parse_name(bound.name, &address.name) ||
	    !inet_address_parse(bound.name, &name) || getsockname(fd, &at.any, &at.len) < 0)
		return;
	address.protocol = bound.protocol;
	snprintf(address.born, sizeof(address.born), "%s", *bound.host);
	if (at.len == name.len && !memcmp(&at.any, &name.any, at.len))
		r = address_forget(&address, &err);
	else
		r = address_renew(target->names, bound.protocol, &address.name, address.born, fd, &err);
	if (r < 0)
		log_warn("restore: a bound socket is not visible to other hosts: %s", err.text);
}

/* Sockets of a rollback, which other hosts find from the commit on. */
struct renewals {
	struct renewal {
		const Pbeam__Object *object;
		int fd; /* of the rebuild, until after the commit */
	} * v;
	size_t n;
};

static int renew_later(void **state, const Pbeam__Object *object, int fd, struct err *err)
{
	struct renewals *renewals = *state ? *state : (*state = calloc(1, sizeof(*renewals)));
	const struct renewal new = {object, fd};

	return renewals && object_append(renewals->v, renewals->n, new) == 0
		       ? 0
		       : err_code(err, -ENOMEM, "addresses");
}

static int address_finish(struct migrate_target *target, void **state, struct object_restore *restore,
			  const Pbeam__Object *object, int fd, struct err *err)
{
	const struct object_ops *ops = object_ops_of(object);
	int r = ops->finish ? ops->finish(restore, object, fd, err) : 0;

	if (r == 0)
		r = address_arrived(target, object, fd, err);
	if (r == 0 && target->begin->cut && object_restore_is_beside(restore))
		r = renew_later(state, object, fd, err);
	else if (r == 0 && target->begin->cut)
		renew_entry(target, object, fd);
	return r;
}

static void address_committed(struct migrate_target *target, void **state)
{
	const struct renewals *renewals = *state;

	for (size_t i = 0; renewals && i < renewals->n; i++)
		renew_entry(target, renewals->v[i].object, renewals->v[i].fd);
}

static int address_ready(struct migrate_target *target, void **state, ProtobufCBinaryData *rendezvous,
			 struct err *err)
{
	if (!target->arrivals)
		return 0;
	rendezvous->len = pbeam__address_arrivals__get_packed_size(target->arrivals);
	rendezvous->data = malloc(rendezvous->len + 1);
	if (!rendezvous->data)
		return err_code(err, -ENOMEM, "addresses");
	pbeam__address_arrivals__pack(target->arrivals, rendezvous->data);
	return 0;
}

static void address_target_close(struct migrate_target *target, void **state)
{
	struct renewals *renewals = *state;

	if (renewals)
		free(renewals->v);
	free(renewals);
	message_free(target->arrivals);
	target->arrivals = NULL;
}

const struct external_provider address_provider = {
	.name = "address",
	.dump = address_dump_bound,
	.held = address_held,
	.source_close = address_source_close,
	.make = address_make,
	.finish = address_finish,
	.ready = address_ready,
	.target_committed = address_committed,
	.target_close = address_target_close,
};
