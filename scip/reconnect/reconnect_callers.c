#include "scip/reconnect/reconnect_callers.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "proto/message.h"
#include "scip/object/common.h"

enum { PORTS_MAX = 65536, ANSWER_MS = 10000, HEARD_LOOKS = 250, HEARD_LOOK_US = 2000, ANY_PORT = 9 };
enum { READ_LOOKS = 50, READ_LOOK_US = 100000 };

/* ---- which ---- */

struct finding {
	struct reconnect_callers *callers;
	const Pbeam__ReconnectRequest *request;
	struct inet_address host; /* where the ports go; len 0: unknown */
	bool *here;		  /* the port's peer is of this host */
	int r;
};

static bool is_of_group(const Pbeam__ReconnectRequest *request, uint64_t ino)
{
	for (size_t i = 0; i < request->n_group; i++)
		if (request->group[i] == ino)
			return true;
	return false;
}

static bool port_has_caller(const Pbeam__ReconnectPort *port, const struct inet_address *peer)
{
	struct inet_address address;

	for (size_t i = 0; i < port->n_addresses && inet_port(peer); i++)
		if (inet_address_parse(&port->addresses[i], &address) && inet_same(&address, peer))
			return true;
	return false;
}

/* True if a socket with this address can send to the other host: one bound to the loopback cannot. */
static bool can_reach(const struct inet_address *own, const struct inet_address *host)
{
	struct inet_address from = *own, to = inet_in_family(host, own->any.sa_family);
	auto_close int probe = socket(own->any.sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	inet_set_port(&from, 0);
	inet_set_port(&to, ANY_PORT);
	return probe >= 0 && bind(probe, &from.any, from.len) == 0 && connect(probe, &to.any, to.len) == 0;
}

static void on_caller_socket(void *arg, const struct inet_address *own, const struct inet_address *peer,
			     uint64_t ino, uint32_t queued)
{
	struct finding *finding = arg;
	const Pbeam__ReconnectRequest *request = finding->request;

	for (size_t i = 0; i < request->n_ports && finding->r == 0; i++) {
		struct reconnect_caller one = {.ino = ino,
					       .fd = -1,
					       .port = i,
					       .own = *own,
					       .peer = *peer,
					       .connected = inet_port(peer) != 0};
		struct inet_address wanted;
		bool has_peer = inet_address_parse(&request->ports[i]->peer, &wanted);

		if (one.connected && !port_has_caller(request->ports[i], peer))
			continue;
		if (has_peer ? !finding->here[i] || !inet_covers(own, &wanted) : !one.connected)
			continue;
		if (!ino || is_of_group(request, ino) || !can_reach(own, &finding->host))
			continue;
		finding->r = object_append(finding->callers->v, finding->callers->n, one);
	}
}

int reconnect_callers_find(struct reconnect_callers *callers, const Pbeam__ReconnectRequest *request,
			   struct err *err)
{
	auto_free bool *here = calloc(request->n_ports + 1, sizeof(*here));
	struct finding finding = {.callers = callers, .request = request, .here = here};
	int r;

	if (request->n_ports == 0)
		return 0;
	if (callers->nports || request->n_ports > PORTS_MAX ||
	    !inet_address_parse(&request->host, &finding.host))
		return err_set(err, -EPROTO, "a request for %zu ports", request->n_ports);
	callers->leads = calloc(request->n_ports, sizeof(*callers->leads));
	if (!callers->leads || !here)
		return err_code(err, -ENOMEM, "hold connections");
	callers->nports = request->n_ports;
	for (size_t i = 0; i < request->n_ports; i++) {
		struct inet_address peer;

		here[i] = inet_address_parse(&request->ports[i]->peer, &peer) && inet_is_local(&peer) > 0;
	}
	r = inet_diag_udp(on_caller_socket, &finding);
	if (r == 0)
		r = finding.r;
	return r < 0 ? err_code(err, r, "look for connected UDP sockets") : 0;
}

/* ---- held ---- */

static void caller_let_go(struct reconnect_caller *one)
{
	if (one->fd >= 0)
		close(steal_fd(&one->fd));
}

/* Takes a duplicate of the socket, unless its peer has changed since it was found. */
static int caller_take(struct reconnect_caller *one, const struct reconnect_hold *hold, struct err *err)
{
	struct inet_address peer = {.len = sizeof(peer.v6)};
	bool connected;

	one->fd = reconnect_hold_duplicate(hold, one->ino, err);
	if (one->fd < 0)
		return one->fd;
	connected = getpeername(one->fd, &peer.any, &peer.len) == 0;
	if (connected != one->connected || (connected && !inet_same(&peer, &one->peer)))
		caller_let_go(one);
	return 0;
}

/* Looks up the port's name while the name table still has the old address. */
static void caller_learn_port(struct reconnect_caller *one, const Pbeam__ReconnectPort *port,
			      struct names *names)
{
	struct name_address *former = &one->former, found;
	struct inet_address at;

	if (one->connected || !port->n_addresses || !inet_address_parse(&port->addresses[0], &at))
		return;
	*former = (struct name_address){.protocol = IPPROTO_UDP, .caller = true, .passing = true};
	memcpy(&former->real, &at.any, at.len);
	former->name = former->real;
	if (names_address_find_real(names, IPPROTO_UDP, &at.any, &found) == 0 && !found.caller)
		former->name = found.name;
	(void)names_cluster(names, former->host);
}

static bool hold_has_inode(const struct reconnect_hold *hold, struct rpid rpid, uint64_t ino)
{
	for (size_t i = 0; i < hold->naliases; i++)
		if (hold->aliases[i].rpid.n == rpid.n && hold->aliases[i].ino == ino)
			return true;
	return false;
}

/* Has the holders' scips translate the port's address. A holder that cannot keeps its sockets on the bridge.
 */
static int make_hear(struct reconnect_callers *callers, struct reconnect_hold *hold, struct err *err)
{
	Pbeam__ScipTrapDatagrams trap = PBEAM__SCIP_TRAP_DATAGRAMS__INIT;
	int r;

	for (size_t i = 0; i < hold->group.n; i++) {
		struct member *member = hold->group.v[i];
		bool exchanges = false;

		trap.send = false;
		for (size_t k = 0; k < callers->n; k++) {
			const struct reconnect_caller *one = &callers->v[k];

			if (one->fd < 0 || !hold_has_inode(hold, member->rpid, one->ino))
				continue;
			exchanges = true;
			trap.send = trap.send || !one->connected;
		}
		if (exchanges)
			group_ask(member, PBEAM__SCIP_REQUEST__SCIP_TRAP_DATAGRAMS, &trap.base, NULL, 0);
	}
	r = group_gather(&hold->group, &pbeam__scip_done__descriptor, ANSWER_MS, err);
	for (size_t i = 0; i < hold->group.n && r == 0; i++) {
		const struct member *member = hold->group.v[i];

		if (!member->problem.code)
			continue;
		log_info("reconnect: vpid %d goes on through a bridge: %s", member->vpid.n,
			 member->problem.text);
		for (size_t k = 0; k < callers->n; k++)
			if (hold_has_inode(hold, member->rpid, callers->v[k].ino))
				caller_let_go(&callers->v[k]);
	}
	return r;
}

static int callers_describe_port(const struct reconnect_callers *callers, size_t port,
				 const Pbeam__ReconnectPort *asked, Pbeam__ReconnectReply *reply)
{
	Pbeam__ReconnectCallers *out = message_add(reply, callers, pbeam__reconnect_callers__descriptor);
	int r = out ? 0 : -ENOMEM;
	size_t held = 0, all = 0;

	for (size_t i = 0; i < callers->n && r == 0; i++) {
		const struct reconnect_caller *one = &callers->v[i];

		if (one->port != port)
			continue;
		all++;
		if (one->fd < 0)
			continue;
		held++;
		out->calls = out->calls || !one->connected;
		if (one->connected)
			r = message_append_bytes(&out->connected, &out->n_connected, &one->own.any,
						 one->own.len);
	}
	if (r == 0)
		out->answers = asked->peer.len && all && held == all;
	return r;
}

int reconnect_callers_take(struct reconnect_callers *callers, struct reconnect_hold *hold, const bool *found,
			   const Pbeam__ReconnectRequest *request, Pbeam__ReconnectReply *reply,
			   struct err *err)
{
	int r = 0;

	for (size_t i = 0; i < callers->n && r == 0; i++) {
		size_t first = 0;

		while (callers->v[first].ino != callers->v[i].ino)
			first++;
		if (found[first])
			r = caller_take(&callers->v[i], hold, err);
		if (callers->v[i].fd >= 0)
			caller_learn_port(&callers->v[i], request->ports[callers->v[i].port], hold->names);
	}
	if (r == 0 && callers->n)
		r = make_hear(callers, hold, err);
	for (size_t i = 0; i < callers->nports && r == 0; i++)
		if (callers_describe_port(callers, i, request->ports[i], reply) < 0)
			r = err_code(err, -ENOMEM, "answer");
	return r;
}

int reconnect_callers_lead(struct reconnect_callers *callers, const Pbeam__ReconnectRequest *request,
			   struct err *err)
{
	if (request->n_ports != callers->nports)
		return err_set(err, -EPROTO, "%zu places of %zu ports", request->n_ports, callers->nports);
	for (size_t i = 0; i < callers->nports; i++) {
		struct reconnect_lead *lead = &callers->leads[i];

		if (!inet_address_parse(&request->ports[i]->address, &lead->to))
			lead->to.len = 0;
		lead->home = port_has_caller(request->ports[i], &lead->to);
	}
	callers->led = true;
	return 0;
}

/* ---- the commit ---- */

static void caller_follow(struct reconnect_caller *one, const struct inet_address *port, struct names *names)
{
	struct inet_address to = inet_in_family(port, one->own.any.sa_family);
	struct name_socket name = {0};
	char text[INET_TEXT_MAX];

	if (names_socket_get(names, one->ino, &name) < 0)
		memset(&name, 0, sizeof(name));
	if (!name.peer.sa.sa_family)
		memcpy(&name.peer, &one->peer.any, one->peer.len);
	if (names_socket_set(names, one->ino, &name) < 0 || connect(one->fd, &to.any, to.len) < 0)
		log_warn("reconnect: a socket that is connected to UDP %s does not reach it any more: %s",
			 inet_text(&one->peer, text), strerror(errno));
}

/* A socket that is not connected finds its peer through the name table. Waits until the registry's change has
 * arrived there. */
static void await_name(const struct reconnect_lead *lead, struct names *names)
{
	struct name_address found;

	for (int i = 0; i < HEARD_LOOKS; i++) {
		bool named = names_address_find_real(names, IPPROTO_UDP, &lead->to.any, &found) == 0;
		bool away = names_address_find(names, IPPROTO_UDP, &lead->to.any, NULL, &found) == 0;

		if (lead->home ? !away : named)
			return;
		usleep(HEARD_LOOK_US);
	}
}

/* If the caller used a bridge before, its datagrams go directly from now on. */
static void leave_stand_in(const struct reconnect_caller *one, struct names *names)
{
	struct name_address found;

	if (names_address_find_caller(names, &one->former.name.sa, (uint16_t)inet_port(&one->own), &found) <
	    0)
		return;
	found.passing = true;
	if (names_address_set(names, &found, NULL, 0) < 0)
		log_info("reconnect: a UDP socket is answered through a bridge");
}

/* Datagrams that wait have the sender's old address: keeps its name until they are read. */
static void callers_note_former(struct reconnect_callers *callers, const struct reconnect_caller *one,
				struct names *names)
{
	struct reconnect_former former = {.ino = one->ino, .name = one->former};

	if (!memcmp(&former.name.name, &former.name.real, sizeof(former.name.real)))
		return;
	if (object_append(callers->formers, callers->nformers, former) < 0 ||
	    names_address_set(names, &former.name, NULL, 0) < 0)
		log_info("reconnect: datagrams that wait at a UDP socket are not from the name of the sender "
			 "that has moved");
}

void reconnect_callers_commit(struct reconnect_callers *callers, struct names *names)
{
	for (size_t i = 0; i < callers->n; i++) {
		struct reconnect_caller *one = &callers->v[i];
		const struct reconnect_lead *lead = &callers->leads[one->port];

		if (one->fd < 0 || !lead->to.len)
			continue;
		if (one->connected) {
			caller_follow(one, &lead->to, names);
			continue;
		}
		if (one->former.protocol) {
			leave_stand_in(one, names);
			callers_note_former(callers, one, names);
		}
		await_name(lead, names);
	}
}

void reconnect_callers_free(struct reconnect_callers *callers)
{
	for (size_t i = 0; i < callers->n; i++)
		caller_let_go(&callers->v[i]);
	free(callers->v);
	free(callers->leads);
	callers->v = NULL;
	callers->leads = NULL;
	callers->n = callers->nports = 0;
	callers->led = false;
}

struct reading {
	const struct reconnect_callers *callers;
	bool waiting;
};

static void look_at_queue(void *arg, const struct inet_address *own, const struct inet_address *peer,
			  uint64_t ino, uint32_t queued)
{
	struct reading *reading = arg;

	for (size_t i = 0; i < reading->callers->nformers; i++)
		reading->waiting = reading->waiting || (queued && reading->callers->formers[i].ino == ino);
}

void reconnect_callers_end(struct reconnect_callers *callers, struct names *names)
{
	struct reading reading = {.callers = callers, .waiting = callers->nformers != 0};

	for (int i = 0; i < READ_LOOKS && reading.waiting; i++) {
		usleep(READ_LOOK_US);
		reading.waiting = false;
		if (inet_diag_udp(look_at_queue, &reading) < 0)
			break;
	}
	for (size_t i = 0; i < callers->nformers; i++)
		names_address_remove(names, &callers->formers[i].name);
	free(callers->formers);
	callers->formers = NULL;
	callers->nformers = 0;
	reconnect_callers_free(callers);
}
