/*
 * The side that a connection leaves: which of the group's TCP connections have their other end with other
 * processes of the name space, where these are, and the talk with `scip reconnect` there.
 *
 * What is not taken here (its host is not of the cluster, its other end is held by a program that is not of
 * the name space or waits to be accepted, the socket is shared with a process that stays) is left for a
 * bridge.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "base/log.h"
#include "channel/channel.h"
#include "proto/ask.h"
#include "proto/message.h"
#include "scip/ends/end_tcp.h"
#include "scip/object/common.h"
#include "scip/object/tcp_look.h"
#include "scip/object/tcp_socket.h"
#include "scip/reconnect/reconnect.h"
#include "scip/reconnect/reconnect_hold.h"
#include "scip/reconnect/reconnect_ports.h"
#include "scip/reconnect/reconnect_provider.h"

/* One connection of the group. */
struct leaving_end {
	struct end_tcp end;
	size_t peer; /* index into peers */
	bool held;   /* the other side has it */
	struct end_tcp_level other;
};

/* One host with other ends. */
struct peer_host {
	char name[64]; /* "" for this one */
	struct inet_address address;
	int channel;
	uint32_t port4, port6;
	size_t nheld;
};

struct leaving {
	struct leaving_end *ends;
	size_t nends;
	struct peer_host *peers;
	size_t npeers;
	struct reconnect_ports ports; /* of UDP: all are told to all peers */
	Pbeam__HostList *hosts;
	const struct migrate_source *source;
	const char *uuid; /* of the migration */
	bool accepts;	  /* ACCEPT has been sent and not answered */
};

/* ---- which, and where ---- */

static bool has_address(const Pbeam__HostInfo *info, const struct inet_address *wanted)
{
	struct inet_address plain = *wanted, one;

	if (plain.any.sa_family == AF_INET)
		plain.v4.sin_port = 0;
	else
		plain.v6.sin6_port = 0;
	for (size_t i = 0; i < info->n_addresses; i++)
		if (inet_address_from_text(info->addresses[i], &one) && inet_same(&one, &plain))
			return true;
	return false;
}

/* The host that has the address: the first in the list is this one. */
static const Pbeam__HostInfo *find_host(const struct leaving *leaving, const struct inet_address *address)
{
	const Pbeam__HostList *hosts = leaving->hosts;

	if (hosts->n_hosts && inet_is_local(address))
		return hosts->hosts[0];
	for (size_t i = 1; i < hosts->n_hosts; i++)
		if (has_address(hosts->hosts[i], address))
			return hosts->hosts[i];
	return NULL;
}

/* The entry of a host, made when it is new. -1 when it cannot be reached by others. */
static int peer_of(struct leaving *leaving, const Pbeam__HostInfo *info)
{
	const char *name = info == leaving->hosts->hosts[0] ? "" : info->name;
	struct peer_host peer = {.channel = -1};

	for (size_t i = 0; i < leaving->npeers; i++)
		if (!strcmp(leaving->peers[i].name, name))
			return (int)i;
	snprintf(peer.name, sizeof(peer.name), "%s", name);
	if (!inet_address_from_text(info->address, &peer.address) ||
	    object_append(leaving->peers, leaving->npeers, peer) < 0)
		return -1;
	return (int)leaving->npeers - 1;
}

static int know_hosts(struct leaving *leaving, struct err *err)
{
	return leaving->hosts ? 0 : ask_hosts("scip " PBEAM_VERSION, &leaving->hosts, err);
}

static int add_end(struct leaving *leaving, const struct object_source *of, struct end_tcp *end,
		   struct err *err)
{
	const Pbeam__HostInfo *host;
	struct leaving_end new = {.end = *end};
	int peer;

	if (know_hosts(leaving, err) < 0)
		return err->code;
	host = find_host(leaving, &end->peer);
	peer = host ? peer_of(leaving, host) : -1;
	if (peer < 0)
		return 0;
	new.peer = (size_t)peer;
	new.end.ino = of->st.st_ino;
	return object_append(leaving->ends, leaving->nends, new) < 0 ? err_code(err, -ENOMEM, "connections")
								     : 0;
}

static void add_all_hosts(struct leaving *leaving)
{
	for (size_t i = 0; i < leaving->hosts->n_hosts; i++)
		if (leaving->hosts->hosts[i]->state == PBEAM__HOST_INFO__STATE__UP)
			(void)peer_of(leaving, leaving->hosts->hosts[i]);
}

/* The hosts with sockets that may be connected with the group's UDP ports: all, for a port that is not
 * connected. */
static int add_ports(struct leaving *leaving, struct migrate_source *source, struct object_dump *dump,
		     struct err *err)
{
	auto_free bool *wanted = NULL;
	int r = reconnect_ports_find(&leaving->ports, source, dump, err);
	bool all = false;

	if (r == 0 && leaving->ports.n)
		r = know_hosts(leaving, err);
	wanted = calloc(leaving->ports.n + 1, sizeof(*wanted));
	if (r < 0 || !wanted)
		return r < 0 ? r : err_code(err, -ENOMEM, "UDP ports");
	for (size_t i = 0; i < leaving->ports.n; i++) {
		const struct reconnect_port *port = &leaving->ports.v[i];
		const Pbeam__HostInfo *host = port->peer.len ? find_host(leaving, &port->peer) : NULL;

		wanted[i] = !port->peer.len || (host && peer_of(leaving, host) >= 0);
		all = all || !port->peer.len;
	}
	if (all)
		add_all_hosts(leaving);
	reconnect_ports_keep(&leaving->ports, wanted);
	return 0;
}

/* What a process that stays holds as well cannot be in two places. */
static int drop_shared(struct leaving *leaving, const struct migrate_source *source, struct err *err)
{
	size_t n = leaving->nends + leaving->ports.n, kept = 0;
	auto_free uint64_t *inos = calloc(n + 1, sizeof(*inos));
	auto_free bool *shared = calloc(n + 1, sizeof(*shared));

	if (!inos || !shared)
		return err_code(err, -ENOMEM, "connections");
	for (size_t i = 0; i < n; i++)
		inos[i] = i < leaving->nends ? leaving->ends[i].end.ino
					     : leaving->ports.v[i - leaving->nends].ino;
	if (reconnect_hold_shared(source->names, source->group, inos, n, shared) < 0)
		return err_code(err, -ENOMEM, "connections");
	for (size_t i = 0; i < n; i++)
		shared[i] = !shared[i];
	reconnect_ports_keep(&leaving->ports, shared + leaving->nends);
	for (size_t i = 0; i < leaving->nends; i++)
		if (shared[i])
			leaving->ends[kept++] = leaving->ends[i];
	leaving->nends = kept;
	return 0;
}

/* ---- talking ---- */

/* A request for the connections of one host; the n-th is the n-th of leaving->ends with that host. */
static Pbeam__ReconnectRequest *new_request(const struct leaving *leaving, size_t peer, const char *uuid,
					    int operation)
{
	Pbeam__ReconnectRequest *request = message_new(&pbeam__reconnect_request__descriptor);
	bool good = request && message_string(&request->migration, uuid) == 0;

	if (request)
		request->operation = (Pbeam__ReconnectRequest__Operation)operation;
	if (good && (operation == PBEAM__RECONNECT_REQUEST__OPERATION__HOLD ||
		     operation == PBEAM__RECONNECT_REQUEST__OPERATION__LEAD))
		good = reconnect_ports_describe(&leaving->ports, leaving->source, leaving->hosts, request) ==
		       0;
	for (size_t i = 0; good && i < leaving->nends; i++) {
		const struct end_tcp *end = &leaving->ends[i].end;
		Pbeam__ReconnectConnection *c;

		if (leaving->ends[i].peer != peer)
			continue;
		c = message_add(request, connections, pbeam__reconnect_connection__descriptor);
		/* Their own is our peer. */
		good = c && message_bytes(&c->own, &end->peer.any, end->peer.len) == 0 &&
		       message_bytes(&c->peer, &end->own.any, end->own.len) == 0 &&
		       message_bytes(&c->cookie, end->cookie, ACCEPTOR_COOKIE_SIZE) == 0;
	}
	if (good)
		return request;
	message_free(request);
	return NULL;
}

/* The same to all hosts at the same time. */
static int send_all(struct leaving *leaving, const char *uuid, int operation, struct err *err)
{
	int r = 0;

	for (size_t i = 0; i < leaving->npeers && r == 0; i++) {
		Pbeam__ReconnectRequest *request;

		if (leaving->peers[i].channel < 0)
			continue;
		request = new_request(leaving, i, uuid, operation);
		r = request ? 0 : err_code(err, -ENOMEM, "ask for connections");
		if (r == 0 && operation == PBEAM__RECONNECT_REQUEST__OPERATION__LISTEN)
			r = message_bytes(&request->address, &leaving->peers[i].address,
					  leaving->peers[i].address.len);
		if (r == 0 && operation == PBEAM__RECONNECT_REQUEST__OPERATION__LEAD)
			r = reconnect_ports_lead(&leaving->ports, leaving->source, request, err);
		if (r == 0)
			r = reconnect_send(leaving->peers[i].channel, request, err);
		message_free(request);
	}
	return r;
}

/* One host's answer, each connection's part to `take`. */
static int receive_from(struct leaving *leaving, size_t peer,
			void (*take)(struct leaving_end *, const Pbeam__ReconnectEnd *), struct err *err)
{
	Pbeam__ReconnectReply *reply = reconnect_receive(leaving->peers[peer].channel, err);
	size_t n = 0;
	int held;

	if (!reply)
		return err->code < 0 ? err->code : -EPROTO;
	for (size_t i = 0; take && i < leaving->nends; i++)
		if (leaving->ends[i].peer == peer && n < reply->n_ends)
			take(&leaving->ends[i], reply->ends[n++]);
	held = reconnect_ports_take(&leaving->ports, reply);
	leaving->peers[peer].nheld += held > 0 ? (size_t)held : 0;
	if (reply->port4) {
		leaving->peers[peer].port4 = reply->port4;
		leaving->peers[peer].port6 = reply->port6;
	}
	message_free(reply);
	return held < 0 ? err_code(err, held, "UDP ports") : 0;
}

static int receive_all(struct leaving *leaving,
		       void (*take)(struct leaving_end *, const Pbeam__ReconnectEnd *), struct err *err)
{
	int r = 0;

	for (size_t i = 0; i < leaving->npeers && r == 0; i++)
		if (leaving->peers[i].channel >= 0)
			r = receive_from(leaving, i, take, err);
	return r;
}

static int ask_all(struct leaving *leaving, const char *uuid, int operation,
		   void (*take)(struct leaving_end *, const Pbeam__ReconnectEnd *), struct err *err)
{
	int r = send_all(leaving, uuid, operation, err);

	return r < 0 ? r : receive_all(leaving, take, err);
}

/* ---- claim ---- */

static void take_state(struct leaving_end *end, const Pbeam__ReconnectEnd *reply)
{
	end->held = reply->state == PBEAM__RECONNECT_END__STATE__HELD;
}

static void take_level(struct leaving_end *end, const Pbeam__ReconnectEnd *reply)
{
	end->other = (struct end_tcp_level){
		.waiting = reply->waiting, .queued = reply->queued, .room = reply->room};
}

static bool has_ends(const struct leaving *leaving, size_t peer)
{
	for (size_t i = 0; i < leaving->nends; i++)
		if (leaving->ends[i].peer == peer)
			return true;
	return false;
}

static int open_channel(struct peer_host *peer, struct names *names, struct err *err)
{
	struct pollfd p = {.fd = peer->channel};

	/* one that was opened ahead may have been lost since */
	if (peer->channel >= 0 && poll(&p, 1, 0) == 0)
		return 0;
	if (peer->channel >= 0)
		close(peer->channel);
	peer->channel = peer->name[0]
				? channel_open(peer->name, PBEAM__CHANNEL_KIND__CHANNEL_RECONNECT, NULL, err)
				: reconnect_fork(names, err);
	return peer->channel < 0 ? peer->channel : 0;
}

/* A host that does not reply may only have callers of a UDP port: they go on through its bridge. */
static int open_channels(struct leaving *leaving, struct names *names, struct err *err)
{
	for (size_t i = 0; i < leaving->npeers; i++) {
		struct peer_host *peer = &leaving->peers[i];
		bool needed = has_ends(leaving, i);
		int r = needed || leaving->ports.n ? open_channel(peer, names, err) : 0;

		if (r < 0 && needed)
			return r;
		if (r < 0)
			log_info("reconnect: host %s is not told of UDP ports: %s", peer->name, err->text);
		if (!needed && !leaving->ports.n && peer->channel >= 0)
			close(steal_fd(&peer->channel));
	}
	err_clear(err);
	return 0;
}

static int take_own(struct leaving *leaving, struct object_dump *dump, struct err *err)
{
	for (size_t i = 0; i < leaving->nends; i++) {
		struct leaving_end *end = &leaving->ends[i];
		const struct object_source *of = object_dump_find_inode(dump, end->end.ino, NULL);
		int fd = of ? fcntl(of->local, F_DUPFD_CLOEXEC, 0) : -1, r;

		if (!end->held) {
			if (fd >= 0)
				close(fd);
			continue;
		}
		if (fd < 0)
			return err_sys(err, "take a connection");
		r = end_tcp_take(&end->end, fd, err);
		if (r < 0)
			return r;
		leaving->peers[end->peer].nheld++;
		if (getrandom(end->end.cookie, ACCEPTOR_COOKIE_SIZE, 0) != ACCEPTOR_COOKIE_SIZE)
			return err_sys(err, "make a cookie");
	}
	return 0;
}

/* One round on all hosts: the bytes still under way. */
static int drain_round(void *arg, unsigned round, uint64_t *waiting, struct err *err)
{
	struct leaving *leaving = arg;
	int r = send_all(leaving, leaving->uuid, PBEAM__RECONNECT_REQUEST__OPERATION__DRAIN, err);
	auto_free struct end_tcp_level *own = calloc(leaving->nends + 1, sizeof(*own));

	if (!own)
		return err_code(err, -ENOMEM, "drain");
	for (size_t i = 0; i < leaving->nends && r == 0; i++)
		if (leaving->ends[i].held)
			own[i] = end_tcp_drain(&leaving->ends[i].end, round);
	if (r == 0)
		r = receive_all(leaving, take_level, err);
	*waiting = 0;
	for (size_t i = 0; i < leaving->nends && r == 0; i++) {
		const struct leaving_end *end = &leaving->ends[i];

		if (!end->held)
			continue;
		*waiting += own[i].waiting + end->other.waiting;
		if (!end_tcp_fits(&own[i], &end->other) || !end_tcp_fits(&end->other, &own[i]))
			r = err_set(err, -EBUSY,
				    "a TCP connection has more on its way than its receiver has room for; "
				    "let the "
				    "receiver read, or raise net.ipv4.tcp_rmem");
	}
	return r;
}

/* Those who will have to know how it ends. */
static int name_peers(const struct leaving *leaving, struct migrate_source *source, struct err *err)
{
	for (size_t i = 0; i < leaving->npeers; i++)
		if (leaving->peers[i].nheld && leaving->peers[i].name[0] &&
		    object_append(source->peers, source->npeers, leaving->peers[i].name) < 0)
			return err_code(err, -ENOMEM, "connections");
	return 0;
}

/* Hosts of which nothing was got are let go; connections that are not held too. True: some are. */
static bool let_go(struct leaving *leaving)
{
	size_t kept = 0;

	for (size_t i = 0; i < leaving->npeers; i++)
		if (leaving->peers[i].channel >= 0 && !leaving->peers[i].nheld)
			close(steal_fd(&leaving->peers[i].channel));
	for (size_t i = 0; i < leaving->nends; i++)
		kept += leaving->ends[i].held;
	log_debug("reconnect: %zu of %zu connections", kept, leaving->nends);
	return kept != 0;
}

static int claim_all(struct leaving *leaving, struct migrate_source *source, struct object_dump *dump,
		     struct err *err)
{
	int r = drop_shared(leaving, source, err);
	bool some;

	if (r == 0)
		r = open_channels(leaving, source->names, err);
	if (r == 0)
		r = ask_all(leaving, source->uuid, PBEAM__RECONNECT_REQUEST__OPERATION__HOLD, take_state,
			    err);
	if (r == 0)
		r = take_own(leaving, dump, err);
	if (r < 0)
		return r;
	some = let_go(leaving);
	r = name_peers(leaving, source, err);
	if (r < 0 || !some)
		return r;
	r = end_tcp_drain_all(drain_round, leaving, err);
	if (r == 0)
		r = ask_all(leaving, source->uuid, PBEAM__RECONNECT_REQUEST__OPERATION__LISTEN, NULL, err);
	/* Answered when all have come. */
	if (r == 0)
		r = send_all(leaving, source->uuid, PBEAM__RECONNECT_REQUEST__OPERATION__ACCEPT, err);
	leaving->accepts = true;
	for (size_t i = 0; i < leaving->nends && r == 0; i++)
		if (leaving->ends[i].held)
			r = end_tcp_look(&leaving->ends[i].end, err);
	return r;
}

static struct leaving *leaving_of(struct migrate_source *source, void **state)
{
	struct leaving *leaving = *state ? *state : calloc(1, sizeof(*leaving));

	*state = leaving;
	if (!leaving)
		return NULL;
	leaving->uuid = source->uuid;
	leaving->source = source;
	source->ports = &leaving->ports;
	return leaving;
}

/* All hosts may have to be asked for callers of a UDP port: that takes no time of the pause. */
static int prepare(struct migrate_source *source, void **state, struct err *err)
{
	struct leaving *leaving =
		source->dry_run || !reconnect_ports_any(source) ? NULL : leaving_of(source, state);

	if (!leaving || know_hosts(leaving, err) < 0)
		return leaving ? err->code : 0;
	add_all_hosts(leaving);
	for (size_t i = 0; i < leaving->npeers; i++)
		if (open_channel(&leaving->peers[i], source->names, err) < 0)
			log_info("reconnect: %s", err->text);
	err_clear(err);
	return 0;
}

static int claim(struct migrate_source *source, void **state, struct object_dump *dump, struct err *err)
{
	struct leaving *leaving = leaving_of(source, state);
	const struct object_source *of;
	int r = leaving ? 0 : err_code(err, -ENOMEM, "look for connections");

	for (size_t i = 0; r == 0 && (of = object_dump_source(dump, i)) != NULL; i++) {
		struct end_tcp end;

		end_tcp_init(&end);
		if (end_tcp_is_external(dump, of, &end))
			r = add_end(leaving, of, &end, err);
	}
	if (r == 0)
		r = add_ports(leaving, source, dump, err);
	if (r == 0 && leaving->nends + leaving->ports.n + leaving->npeers)
		r = claim_all(leaving, source, dump, err);
	return r;
}

/* ---- the rest ---- */

static int mark(const struct leaving *leaving, const struct leaving_end *end, Pbeam__Object *out,
		struct err *err)
{
	Pbeam__ReconnectTicket ticket = PBEAM__RECONNECT_TICKET__INIT;
	struct inet_address to = inet_in_family(&leaving->peers[end->peer].address, end->end.family);
	uint16_t port = htons((uint16_t)(end->end.family == AF_INET ? leaving->peers[end->peer].port4
								    : leaving->peers[end->peer].port6));
	auto_free uint8_t *bytes = NULL;
	size_t len;

	if (end->end.family == AF_INET)
		to.v4.sin_port = port;
	else
		to.v6.sin6_port = port;
	ticket.address = (ProtobufCBinaryData){to.len, (uint8_t *)&to};
	ticket.cookie = (ProtobufCBinaryData){ACCEPTOR_COOKIE_SIZE, (uint8_t *)(uintptr_t)end->end.cookie};
	ticket.receive_buffer = (uint32_t)end->end.receive_buffer;
	ticket.receive_lock = (uint32_t)end->end.receive_lock;
	len = pbeam__reconnect_ticket__get_packed_size(&ticket);
	bytes = malloc(len);
	if (!bytes || (pbeam__reconnect_ticket__pack(&ticket, bytes),
		       external_mark(out, &reconnect_provider, bytes, len)) < 0)
		return err_code(err, -ENOMEM, "record a connection");
	return 1;
}

static int dump_end(struct migrate_source *source, void **state, struct object_dump *dump,
		    const struct object_source *of, Pbeam__Object *out, struct err *err)
{
	struct leaving *leaving = *state;
	struct leaving_end *end = NULL;
	int r;

	for (size_t i = 0; leaving && !of->hidden && i < leaving->nends; i++)
		if (leaving->ends[i].held && leaving->ends[i].end.ino == of->st.st_ino)
			end = &leaving->ends[i];
	if (!end)
		return leaving ? reconnect_ports_dump(&leaving->ports, source, dump, of, out, err) : 0;
	r = end_tcp_record(dump, &end->end, out, err);
	return r < 0 ? r : mark(leaving, end, out, err);
}

static int held(struct migrate_source *source, void **state, const ProtobufCBinaryData *rendezvous,
		struct err *err)
{
	struct leaving *leaving = *state;

	return leaving && leaving->accepts ? receive_all(leaving, NULL, err) : 0;
}

/* One that was killed has let its ends of the old connections go on, and those of the new ones are gone. */
static int check(struct migrate_source *source, void **state, struct err *err)
{
	struct leaving *leaving = *state;

	if (leaving && leaving->ports.n &&
	    ask_all(leaving, source->uuid, PBEAM__RECONNECT_REQUEST__OPERATION__LEAD, NULL, err) < 0)
		return err->code;

	for (size_t i = 0; leaving && i < leaving->npeers; i++) {
		struct pollfd p = {.fd = leaving->peers[i].channel};

		if (p.fd >= 0 && poll(&p, 1, 0) != 0)
			return err_set(err, -EPIPE, "the host of the other end of a connection is lost");
	}
	return 0;
}

static void committed(struct migrate_source *source, void **state)
{
	struct leaving *leaving = *state;
	struct err err = ERR_INIT;

	if (leaving &&
	    ask_all(leaving, source->uuid, PBEAM__RECONNECT_REQUEST__OPERATION__COMMIT, NULL, &err) < 0) {
		log_error("reconnect: %s", err.text);
		source->unheard = true;
	}
	for (size_t i = 0; leaving && i < leaving->nends; i++)
		end_tcp_drop_old(&leaving->ends[i].end);
}

static void end_all(struct migrate_source *source, void **state)
{
	struct leaving *leaving = *state;

	if (!leaving)
		return;
	free(source->peers); /* their names go */
	source->peers = NULL;
	source->npeers = 0;
	source->ports = NULL;
	reconnect_ports_free(&leaving->ports);
	for (size_t i = 0; i < leaving->nends; i++)
		end_tcp_free(&leaving->ends[i].end);
	for (size_t i = 0; i < leaving->npeers; i++)
		if (leaving->peers[i].channel >= 0)
			close(leaving->peers[i].channel);
	message_free(leaving->hosts);
	free(leaving->ends);
	free(leaving->peers);
	free(leaving);
	*state = NULL;
}

const struct external_provider reconnect_provider = {
	.name = "reconnect",
	.prepare = prepare,
	.claim = claim,
	.dump = dump_end,
	.held = held,
	.check = check,
	.source_committed = committed,
	.source_close = end_all,
	.make = reconnect_make,
	.finish = reconnect_finish,
};
