/*
 * The source side: finds the group's TCP connections whose other end a process of the name space holds, and
 * their hosts, and drives `scip reconnect` there.
 *
 * The provider leaves to the bridge a connection whose peer is on no host of the cluster, is held by a
 * program outside the name space, or waits to be accepted, and a socket that a process which stays holds too.
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
#include "proto/rpc.h"
#include "scip/ends/end_tcp.h"
#include "scip/object/common.h"
#include "scip/object/tcp_look.h"
#include "scip/object/tcp_socket.h"
#include "scip/reconnect/reconnect.h"
#include "scip/reconnect/reconnect_hold.h"
#include "scip/reconnect/reconnect_ports.h"
#include "scip/reconnect/reconnect_provider.h"

/* Longer than `scip reconnect` takes for its slowest request (ACCEPT, reconnect_serve.c). */
enum { REPLY_MS = 120000 };

/* One connection of the group. */
struct reconnect_outgoing_end {
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

struct reconnect_outgoing {
	struct reconnect_outgoing_end *ends;
	size_t nends;
	struct peer_host *peers;
	size_t npeers;
	struct reconnect_ports ports; /* UDP; every peer gets all of them */
	Pbeam__HostList *hosts;
	const struct migrate_source *source;
	const char *uuid; /* of the migration */
	bool accepts;	  /* ACCEPT has been sent and not answered */
};

/* ---- which, and where ---- */

static bool has_address(const Pbeam__HostInfo *info, const struct inet_address *wanted)
{
	struct inet_address plain = *wanted, one;

	inet_set_port(&plain, 0);
	for (size_t i = 0; i < info->n_addresses; i++)
		if (inet_address_from_text(info->addresses[i], &one) && inet_same(&one, &plain))
			return true;
	return false;
}

/* Returns the host with the address, or NULL. The first host of the list is this one. */
static const Pbeam__HostInfo *host_by_address(const struct reconnect_outgoing *outgoing,
					      const struct inet_address *address)
{
	const Pbeam__HostList *hosts = outgoing->hosts;

	if (hosts->n_hosts && inet_is_local(address) > 0)
		return hosts->hosts[0];
	for (size_t i = 1; i < hosts->n_hosts; i++)
		if (has_address(hosts->hosts[i], address))
			return hosts->hosts[i];
	return NULL;
}

/* Returns the index of the host's entry, which is added if there is none. -1: other hosts cannot reach it. */
static int outgoing_peer_of(struct reconnect_outgoing *outgoing, const Pbeam__HostInfo *info)
{
	const char *name = info == outgoing->hosts->hosts[0] ? "" : info->name;
	struct peer_host peer = {.channel = -1};

	for (size_t i = 0; i < outgoing->npeers; i++)
		if (!strcmp(outgoing->peers[i].name, name))
			return (int)i;
	snprintf(peer.name, sizeof(peer.name), "%s", name);
	if (!inet_address_from_text(info->address, &peer.address) ||
	    object_append(outgoing->peers, outgoing->npeers, peer) < 0)
		return -1;
	return (int)outgoing->npeers - 1;
}

static int know_hosts(struct reconnect_outgoing *outgoing, struct err *err)
{
	return outgoing->hosts ? 0 : ask_hosts("scip " PBEAM_VERSION, &outgoing->hosts, err);
}

static int add_end(struct reconnect_outgoing *outgoing, const struct object_source *of, struct end_tcp *end,
		   struct err *err)
{
	const Pbeam__HostInfo *host;
	struct reconnect_outgoing_end new = {.end = *end};
	int peer;

	if (know_hosts(outgoing, err) < 0)
		return err->code;
	host = host_by_address(outgoing, &end->peer);
	peer = host ? outgoing_peer_of(outgoing, host) : -1;
	if (peer < 0)
		return 0;
	new.peer = (size_t)peer;
	new.end.ino = of->st.st_ino;
	return object_append(outgoing->ends, outgoing->nends, new) < 0 ? err_code(err, -ENOMEM, "connections")
								       : 0;
}

static void add_all_hosts(struct reconnect_outgoing *outgoing)
{
	for (size_t i = 0; i < outgoing->hosts->n_hosts; i++)
		if (outgoing->hosts->hosts[i]->state == PBEAM__HOST_INFO__STATE__UP)
			(void)outgoing_peer_of(outgoing, outgoing->hosts->hosts[i]);
}

/* Adds the group's UDP ports, and the hosts that may have their callers: every host if a port is not
 * connected. */
static int add_ports(struct reconnect_outgoing *outgoing, struct migrate_source *source,
		     struct object_dump *dump, struct err *err)
{
	auto_free bool *wanted = NULL;
	int r = reconnect_ports_find(&outgoing->ports, source, dump, err);
	bool all = false;

	if (r == 0 && outgoing->ports.n)
		r = know_hosts(outgoing, err);
	wanted = calloc(outgoing->ports.n + 1, sizeof(*wanted));
	if (r < 0 || !wanted)
		return r < 0 ? r : err_code(err, -ENOMEM, "UDP ports");
	for (size_t i = 0; i < outgoing->ports.n; i++) {
		const struct reconnect_port *port = &outgoing->ports.v[i];
		const Pbeam__HostInfo *host = port->peer.len ? host_by_address(outgoing, &port->peer) : NULL;

		wanted[i] = !port->peer.len || (host && outgoing_peer_of(outgoing, host) >= 0);
		all = all || !port->peer.len;
	}
	if (all)
		add_all_hosts(outgoing);
	reconnect_ports_keep(&outgoing->ports, wanted);
	return 0;
}

/* Leaves out sockets that a process which stays holds too. */
static int drop_shared(struct reconnect_outgoing *outgoing, const struct migrate_source *source,
		       struct err *err)
{
	size_t n = outgoing->nends + outgoing->ports.n, kept = 0;
	auto_free uint64_t *inos = calloc(n + 1, sizeof(*inos));
	auto_free bool *shared = calloc(n + 1, sizeof(*shared));

	if (!inos || !shared)
		return err_code(err, -ENOMEM, "connections");
	for (size_t i = 0; i < n; i++)
		inos[i] = i < outgoing->nends ? outgoing->ends[i].end.ino
					      : outgoing->ports.v[i - outgoing->nends].ino;
	if (reconnect_hold_shared(source->names, source->group, inos, n, shared) < 0)
		return err_code(err, -ENOMEM, "connections");
	for (size_t i = 0; i < n; i++)
		shared[i] = !shared[i];
	reconnect_ports_keep(&outgoing->ports, shared + outgoing->nends);
	for (size_t i = 0; i < outgoing->nends; i++)
		if (shared[i])
			outgoing->ends[kept++] = outgoing->ends[i];
	outgoing->nends = kept;
	return 0;
}

/* ---- requests ---- */

/* A request for the connections of one host, in the order of outgoing->ends. */
static Pbeam__ReconnectRequest *new_request(const struct reconnect_outgoing *outgoing, size_t peer,
					    const char *uuid, int operation)
{
	Pbeam__ReconnectRequest *request = message_new(&pbeam__reconnect_request__descriptor);
	bool good = request && message_string(&request->migration, uuid) == 0;

	if (request)
		request->operation = (Pbeam__ReconnectRequest__Operation)operation;
	if (good && (operation == PBEAM__RECONNECT_REQUEST__OPERATION__HOLD ||
		     operation == PBEAM__RECONNECT_REQUEST__OPERATION__LEAD))
		good = reconnect_ports_describe(&outgoing->ports, outgoing->source, outgoing->hosts,
						request) == 0;
	for (size_t i = 0; good && i < outgoing->nends; i++) {
		const struct end_tcp *end = &outgoing->ends[i].end;
		Pbeam__ReconnectConnection *c;

		if (outgoing->ends[i].peer != peer)
			continue;
		c = message_add(request, connections, pbeam__reconnect_connection__descriptor);
		/* The other end's own address is our peer. */
		good = c && message_bytes(&c->own, &end->peer.any, end->peer.len) == 0 &&
		       message_bytes(&c->peer, &end->own.any, end->own.len) == 0 &&
		       message_bytes(&c->cookie, end->cookie, ACCEPTOR_COOKIE_SIZE) == 0;
	}
	if (good)
		return request;
	message_free(request);
	return NULL;
}

/* Sends a request to all hosts; receive_all() reads the replies. */
static int outgoing_send_all(struct reconnect_outgoing *outgoing, const char *uuid, int operation,
			     struct err *err)
{
	int r = 0;

	for (size_t i = 0; i < outgoing->npeers && r == 0; i++) {
		Pbeam__ReconnectRequest *request;

		if (outgoing->peers[i].channel < 0)
			continue;
		request = new_request(outgoing, i, uuid, operation);
		r = request ? 0 : err_code(err, -ENOMEM, "ask for connections");
		if (r == 0 && operation == PBEAM__RECONNECT_REQUEST__OPERATION__LISTEN)
			r = message_bytes(&request->address, &outgoing->peers[i].address,
					  outgoing->peers[i].address.len);
		if (r == 0 && operation == PBEAM__RECONNECT_REQUEST__OPERATION__LEAD)
			r = reconnect_ports_lead(&outgoing->ports, outgoing->source, request, err);
		if (r == 0)
			r = reconnect_send(outgoing->peers[i].channel, request, err);
		message_free(request);
	}
	return r;
}

/* Reads one host's reply, and calls `take` for each of its connections. */
static int receive_from(struct reconnect_outgoing *outgoing, size_t peer,
			void (*take)(struct reconnect_outgoing_end *, const Pbeam__ReconnectEnd *),
			struct err *err)
{
	Pbeam__ReconnectReply *reply = reconnect_receive(outgoing->peers[peer].channel, err);
	size_t n = 0;
	int held;

	if (!reply)
		return err->code < 0 ? err->code : -EPROTO;
	for (size_t i = 0; take && i < outgoing->nends; i++)
		if (outgoing->ends[i].peer == peer && n < reply->n_ends)
			take(&outgoing->ends[i], reply->ends[n++]);
	held = reconnect_ports_take(&outgoing->ports, reply);
	outgoing->peers[peer].nheld += held > 0 ? (size_t)held : 0;
	if (reply->port4) {
		outgoing->peers[peer].port4 = reply->port4;
		outgoing->peers[peer].port6 = reply->port6;
	}
	message_free(reply);
	return held < 0 ? err_code(err, held, "UDP ports") : 0;
}

static int receive_all(struct reconnect_outgoing *outgoing,
		       void (*take)(struct reconnect_outgoing_end *, const Pbeam__ReconnectEnd *),
		       struct err *err)
{
	int r = 0;

	for (size_t i = 0; i < outgoing->npeers && r == 0; i++)
		if (outgoing->peers[i].channel >= 0)
			r = receive_from(outgoing, i, take, err);
	return r;
}

static int ask_all(struct reconnect_outgoing *outgoing, const char *uuid, int operation,
		   void (*take)(struct reconnect_outgoing_end *, const Pbeam__ReconnectEnd *),
		   struct err *err)
{
	int r = outgoing_send_all(outgoing, uuid, operation, err);

	return r < 0 ? r : receive_all(outgoing, take, err);
}

/* ---- claim ---- */

static void take_state(struct reconnect_outgoing_end *end, const Pbeam__ReconnectEnd *reply)
{
	end->held = reply->state == PBEAM__RECONNECT_END__STATE__HELD;
}

static void take_level(struct reconnect_outgoing_end *end, const Pbeam__ReconnectEnd *reply)
{
	end->other = (struct end_tcp_level){
		.waiting = reply->waiting, .queued = reply->queued, .room = reply->room};
}

static bool has_ends(const struct reconnect_outgoing *outgoing, size_t peer)
{
	for (size_t i = 0; i < outgoing->nends; i++)
		if (outgoing->ends[i].peer == peer)
			return true;
	return false;
}

static int open_channel(struct peer_host *peer, struct names *names, struct err *err)
{
	struct pollfd p = {.fd = peer->channel};

	/* A channel from outgoing_prepare() may have been lost since. */
	if (peer->channel >= 0 && poll(&p, 1, 0) == 0)
		return 0;
	if (peer->channel >= 0)
		close(peer->channel);
	peer->channel = peer->name[0]
				? channel_open(peer->name, PBEAM__CHANNEL_KIND__CHANNEL_RECONNECT, NULL, err)
				: reconnect_fork(names, err);
	if (peer->channel < 0)
		return peer->channel;
	rpc_set_timeout(peer->channel, REPLY_MS);
	return 0;
}

/* Opens a channel to each host. Failing to reach a host that can only have callers of a UDP port is no error:
 * the callers use the port's bridge. */
static int open_channels(struct reconnect_outgoing *outgoing, struct names *names, struct err *err)
{
	for (size_t i = 0; i < outgoing->npeers; i++) {
		struct peer_host *peer = &outgoing->peers[i];
		bool needed = has_ends(outgoing, i);
		int r = needed || outgoing->ports.n ? open_channel(peer, names, err) : 0;

		if (r < 0 && needed)
			return r;
		if (r < 0)
			log_info("reconnect: host %s is not told of UDP ports: %s", peer->name, err->text);
		if (!needed && !outgoing->ports.n && peer->channel >= 0)
			close(steal_fd(&peer->channel));
	}
	err_clear(err);
	return 0;
}

static int take_own(struct reconnect_outgoing *outgoing, struct object_dump *dump, struct err *err)
{
	for (size_t i = 0; i < outgoing->nends; i++) {
		struct reconnect_outgoing_end *end = &outgoing->ends[i];
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
		outgoing->peers[end->peer].nheld++;
		if (getrandom(end->end.cookie, ACCEPTOR_COOKIE_SIZE, 0) != ACCEPTOR_COOKIE_SIZE)
			return err_sys(err, "make a cookie");
	}
	return 0;
}

/* Drains one round on all hosts. *waiting: bytes still in flight. */
static int drain_round(void *arg, unsigned round, uint64_t *waiting, struct err *err)
{
	struct reconnect_outgoing *outgoing = arg;
	int r = outgoing_send_all(outgoing, outgoing->uuid, PBEAM__RECONNECT_REQUEST__OPERATION__DRAIN, err);
	auto_free struct end_tcp_level *own = calloc(outgoing->nends + 1, sizeof(*own));

	if (!own)
		return err_code(err, -ENOMEM, "drain");
	for (size_t i = 0; i < outgoing->nends && r == 0; i++)
		if (outgoing->ends[i].held)
			own[i] = end_tcp_drain(&outgoing->ends[i].end, round);
	if (r == 0)
		r = receive_all(outgoing, take_level, err);
	*waiting = 0;
	for (size_t i = 0; i < outgoing->nends && r == 0; i++) {
		const struct reconnect_outgoing_end *end = &outgoing->ends[i];

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

/* Names the hosts that must learn the outcome. */
static int name_peers(const struct reconnect_outgoing *outgoing, struct migrate_source *source,
		      struct err *err)
{
	for (size_t i = 0; i < outgoing->npeers; i++)
		if (outgoing->peers[i].nheld && outgoing->peers[i].name[0] &&
		    object_append(source->peers, source->npeers, outgoing->peers[i].name) < 0)
			return err_code(err, -ENOMEM, "connections");
	return 0;
}

/* Closes the channels of hosts that hold no connection. Returns true if any connection is held. */
static bool outgoing_let_go(struct reconnect_outgoing *outgoing)
{
	size_t kept = 0;

	for (size_t i = 0; i < outgoing->npeers; i++)
		if (outgoing->peers[i].channel >= 0 && !outgoing->peers[i].nheld)
			close(steal_fd(&outgoing->peers[i].channel));
	for (size_t i = 0; i < outgoing->nends; i++)
		kept += outgoing->ends[i].held;
	log_debug("reconnect: %zu of %zu connections", kept, outgoing->nends);
	return kept != 0;
}

static int claim_all(struct reconnect_outgoing *outgoing, struct migrate_source *source,
		     struct object_dump *dump, struct err *err)
{
	int r = drop_shared(outgoing, source, err);
	bool some;

	if (r == 0)
		r = open_channels(outgoing, source->names, err);
	if (r == 0)
		r = ask_all(outgoing, source->uuid, PBEAM__RECONNECT_REQUEST__OPERATION__HOLD, take_state,
			    err);
	if (r == 0)
		r = take_own(outgoing, dump, err);
	if (r < 0)
		return r;
	some = outgoing_let_go(outgoing);
	r = name_peers(outgoing, source, err);
	if (r < 0 || !some)
		return r;
	r = end_tcp_drain_all(drain_round, outgoing, err);
	if (r == 0)
		r = ask_all(outgoing, source->uuid, PBEAM__RECONNECT_REQUEST__OPERATION__LISTEN, NULL, err);
	/* The reply comes when all ends have connected: outgoing_on_held(). */
	if (r == 0)
		r = outgoing_send_all(outgoing, source->uuid, PBEAM__RECONNECT_REQUEST__OPERATION__ACCEPT,
				      err);
	outgoing->accepts = true;
	for (size_t i = 0; i < outgoing->nends && r == 0; i++)
		if (outgoing->ends[i].held)
			r = end_tcp_look(&outgoing->ends[i].end, err);
	return r;
}

static struct reconnect_outgoing *outgoing_of(struct migrate_source *source, void **state)
{
	struct reconnect_outgoing *outgoing = *state ? *state : calloc(1, sizeof(*outgoing));

	*state = outgoing;
	if (!outgoing)
		return NULL;
	outgoing->uuid = source->uuid;
	outgoing->source = source;
	source->ports = &outgoing->ports;
	return outgoing;
}

/* Any host may have callers of a UDP port: opens the channels before the freeze. */
static int outgoing_prepare(struct migrate_source *source, void **state, struct err *err)
{
	struct reconnect_outgoing *outgoing =
		source->dry_run || !reconnect_ports_any(source) ? NULL : outgoing_of(source, state);

	if (!outgoing || know_hosts(outgoing, err) < 0)
		return outgoing ? err->code : 0;
	add_all_hosts(outgoing);
	for (size_t i = 0; i < outgoing->npeers; i++)
		if (open_channel(&outgoing->peers[i], source->names, err) < 0)
			log_info("reconnect: %s", err->text);
	err_clear(err);
	return 0;
}

static int outgoing_claim(struct migrate_source *source, void **state, struct object_dump *dump,
			  struct err *err)
{
	struct reconnect_outgoing *outgoing = outgoing_of(source, state);
	const struct object_source *of;
	int r = outgoing ? 0 : err_code(err, -ENOMEM, "look for connections");

	for (size_t i = 0; r == 0 && (of = object_dump_source(dump, i)) != NULL; i++) {
		struct end_tcp end;

		end_tcp_init(&end);
		if (end_tcp_is_external(dump, of, &end))
			r = add_end(outgoing, of, &end, err);
	}
	if (r == 0)
		r = add_ports(outgoing, source, dump, err);
	if (r == 0 && outgoing->nends + outgoing->ports.n + outgoing->npeers)
		r = claim_all(outgoing, source, dump, err);
	return r;
}

/* ---- dump and commit ---- */

static int outgoing_mark(const struct reconnect_outgoing *outgoing, const struct reconnect_outgoing_end *end,
			 Pbeam__Object *out, struct err *err)
{
	Pbeam__ReconnectTicket ticket = PBEAM__RECONNECT_TICKET__INIT;
	const struct peer_host *peer = &outgoing->peers[end->peer];
	struct inet_address to = inet_in_family(&peer->address, end->end.family);
	int r;

	inet_set_port(&to, end->end.family == AF_INET ? peer->port4 : peer->port6);
	ticket.address = (ProtobufCBinaryData){to.len, (uint8_t *)&to};
	ticket.cookie = (ProtobufCBinaryData){ACCEPTOR_COOKIE_SIZE, (uint8_t *)(uintptr_t)end->end.cookie};
	ticket.receive_buffer = (uint32_t)end->end.receive_buffer;
	ticket.receive_lock = (uint32_t)end->end.receive_lock;
	r = external_mark_message(out, &reconnect_provider, &ticket.base);
	return r < 0 ? err_code(err, r, "record a connection") : 1;
}

static int dump_end(struct migrate_source *source, void **state, struct object_dump *dump,
		    const struct object_source *of, Pbeam__Object *out, struct err *err)
{
	struct reconnect_outgoing *outgoing = *state;
	struct reconnect_outgoing_end *end = NULL;
	int r;

	for (size_t i = 0; outgoing && !of->hidden && i < outgoing->nends; i++)
		if (outgoing->ends[i].held && outgoing->ends[i].end.ino == of->st.st_ino)
			end = &outgoing->ends[i];
	if (!end)
		return outgoing ? reconnect_ports_dump(&outgoing->ports, source, dump, of, out, err) : 0;
	r = end_tcp_record(dump, &end->end, out, err);
	return r < 0 ? r : outgoing_mark(outgoing, end, out, err);
}

static int outgoing_on_held(struct migrate_source *source, void **state,
			    const ProtobufCBinaryData *rendezvous, struct err *err)
{
	struct reconnect_outgoing *outgoing = *state;

	return outgoing && outgoing->accepts ? receive_all(outgoing, NULL, err) : 0;
}

/* A `scip reconnect` that was killed has thawed its ends of the old connections; its new ones are closed. */
static int outgoing_check(struct migrate_source *source, void **state, struct err *err)
{
	struct reconnect_outgoing *outgoing = *state;

	if (outgoing && outgoing->ports.n &&
	    ask_all(outgoing, source->uuid, PBEAM__RECONNECT_REQUEST__OPERATION__LEAD, NULL, err) < 0)
		return err->code;

	for (size_t i = 0; outgoing && i < outgoing->npeers; i++) {
		struct pollfd p = {.fd = outgoing->peers[i].channel};

		if (p.fd >= 0 && poll(&p, 1, 0) != 0)
			return err_set(err, -EPIPE, "the host of the other end of a connection is lost");
	}
	return 0;
}

static void outgoing_on_committed(struct migrate_source *source, void **state)
{
	struct reconnect_outgoing *outgoing = *state;
	struct err err = ERR_INIT;

	if (outgoing &&
	    ask_all(outgoing, source->uuid, PBEAM__RECONNECT_REQUEST__OPERATION__COMMIT, NULL, &err) < 0) {
		log_error("reconnect: %s", err.text);
		source->unheard = true;
	}
	for (size_t i = 0; outgoing && i < outgoing->nends; i++)
		end_tcp_drop_old(&outgoing->ends[i].end);
}

static void end_all(struct migrate_source *source, void **state)
{
	struct reconnect_outgoing *outgoing = *state;

	if (!outgoing)
		return;
	free(source->peers); /* their names go */
	source->peers = NULL;
	source->npeers = 0;
	source->ports = NULL;
	reconnect_ports_free(&outgoing->ports);
	for (size_t i = 0; i < outgoing->nends; i++)
		end_tcp_free(&outgoing->ends[i].end);
	for (size_t i = 0; i < outgoing->npeers; i++)
		if (outgoing->peers[i].channel >= 0)
			close(outgoing->peers[i].channel);
	message_free(outgoing->hosts);
	free(outgoing->ends);
	free(outgoing->peers);
	free(outgoing);
	*state = NULL;
}

const struct external_provider reconnect_provider = {
	.name = "reconnect",
	.prepare = outgoing_prepare,
	.claim = outgoing_claim,
	.dump = dump_end,
	.held = outgoing_on_held,
	.check = outgoing_check,
	.source_committed = outgoing_on_committed,
	.source_close = end_all,
	.make = reconnect_make,
	.finish = reconnect_finish,
};
