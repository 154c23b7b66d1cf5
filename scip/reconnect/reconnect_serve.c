/*
 * `scip reconnect`: holds the peers of moving connections on their own host. It serves one channel, for one
 * migration. reconnect.h describes the exchange.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fault.h"
#include "base/io.h"
#include "base/log.h"
#include "proto/cluster.pb-c.h"
#include "proto/frame.h"
#include "proto/message.h"
#include "proto/rpc.h"
#include "scip/ends/acceptor.h"
#include "scip/ends/migration_record.h"
#include "scip/object/tcp_socket.h"
#include "scip/reconnect/reconnect.h"
#include "scip/reconnect/reconnect_callers.h"
#include "scip/reconnect/reconnect_hold.h"

enum { CHANNEL_FD = 3, CONNECTIONS_MAX = 65536, ACCEPT_MS = 60000, ACCEPT_LOOK_MS = 100 };

struct serve {
	struct names *names;
	int channel;
	struct reconnect_hold hold;
	struct end_tcp *ends;
	size_t n;
	struct reconnect_callers callers; /* UDP */
	unsigned round;			  /* number of drain rounds */
	struct acceptor *acceptor;	  /* NULL before LISTEN */
	bool filled;			  /* all new connections are ready */
	char migration[64];
};

static int add_reply_ends(Pbeam__ReconnectReply *reply, size_t n, struct err *err)
{
	for (size_t i = 0; i < n; i++)
		if (!message_add(reply, ends, pbeam__reconnect_end__descriptor))
			return err_code(err, -ENOMEM, "answer");
	return 0;
}

/* ---- HOLD ---- */

/* Returns the socket's inode, or 0 if no process has a descriptor of it; out->state is the reason. */
static uint64_t serve_find_end(const struct end_tcp *end, Pbeam__ReconnectEnd *out)
{
	struct inet_diag_answer answer;

	out->state = PBEAM__RECONNECT_END__STATE__GONE;
	if (inet_diag_tcp(&end->own, &end->peer, &answer) < 0)
		return 0;
	if (answer.ino)
		return answer.ino;
	out->state = answer.state == TCP_ESTABLISHED || answer.state == TCP_CLOSE_WAIT ||
				     answer.state == TCP_SYN_RECV
			     ? PBEAM__RECONNECT_END__STATE__WAITING
			     : PBEAM__RECONNECT_END__STATE__CLOSED;
	return 0;
}

static int take_connections(struct serve *serve, const Pbeam__ReconnectRequest *request, struct err *err)
{
	if (serve->ends || request->n_connections + request->n_ports == 0 ||
	    request->n_connections > CONNECTIONS_MAX)
		return err_set(err, -EPROTO, "a request for %zu connections", request->n_connections);
	serve->ends = calloc(request->n_connections + 1, sizeof(*serve->ends));
	if (!serve->ends)
		return err_code(err, -ENOMEM, "hold connections");
	serve->n = request->n_connections;
	for (size_t i = 0; i < serve->n; i++)
		end_tcp_init(&serve->ends[i]);
	for (size_t i = 0; i < serve->n; i++)
		if (!inet_address_parse(&request->connections[i]->own, &serve->ends[i].own) ||
		    !inet_address_parse(&request->connections[i]->peer, &serve->ends[i].peer))
			return err_set(err, -EPROTO, "connection %zu has no addresses", i);
	return 0;
}

/* Takes the ends, whose holders are frozen. A socket that was found before may have lost its holder since. */
static int take_ends(struct serve *serve, const uint64_t *inos, const bool *found,
		     Pbeam__ReconnectReply *reply, struct err *err)
{
	for (size_t i = 0; i < serve->n; i++) {
		Pbeam__ReconnectEnd *out = reply->ends[i];
		int fd, r;

		if (!inos[i])
			continue;
		if (!found[i]) {
			out->state = PBEAM__RECONNECT_END__STATE__OUTSIDE;
			continue;
		}
		fd = reconnect_hold_duplicate(&serve->hold, inos[i], err);
		r = fd < 0 ? fd : end_tcp_take(&serve->ends[i], fd, err);
		if (r < 0)
			return r;
		serve->ends[i].ino = inos[i];
		out->state = PBEAM__RECONNECT_END__STATE__HELD;
		out->family = serve->ends[i].family;
	}
	return 0;
}

static int do_hold(struct serve *serve, const Pbeam__ReconnectRequest *request, Pbeam__ReconnectReply *reply,
		   struct err *err)
{
	auto_free uint64_t *inos = NULL;
	auto_free bool *found = NULL;
	size_t all;
	int r = take_connections(serve, request, err);

	if (r == 0)
		r = add_reply_ends(reply, serve->n, err);
	if (r == 0)
		r = reconnect_callers_find(&serve->callers, request, err);
	if (r < 0)
		return r;
	snprintf(serve->migration, sizeof(serve->migration), "%s", request->migration);
	all = serve->n + serve->callers.n;
	inos = calloc(all + 1, sizeof(*inos));
	found = calloc(all + 1, sizeof(*found));
	if (!inos || !found)
		return err_code(err, -ENOMEM, "hold connections");
	for (size_t i = 0; i < serve->n; i++)
		inos[i] = serve_find_end(&serve->ends[i], reply->ends[i]);
	for (size_t i = 0; i < serve->callers.n; i++)
		inos[serve->n + i] = serve->callers.v[i].ino;
	r = reconnect_hold_freeze(&serve->hold, inos, all, serve->n, found, err);
	if (r == 0)
		r = take_ends(serve, inos, found, reply, err);
	if (r == 0)
		r = reconnect_callers_take(&serve->callers, &serve->hold, found + serve->n, request, reply,
					   err);
	return r < 0 ? r : fault_point("reconnect-held", err);
}

/* ---- DRAIN ---- */

static int do_drain(struct serve *serve, Pbeam__ReconnectReply *reply, struct err *err)
{
	int r = add_reply_ends(reply, serve->n, err);

	for (size_t i = 0; i < serve->n && r == 0; i++) {
		struct end_tcp_level level = {0};

		if (serve->ends[i].old >= 0)
			level = end_tcp_drain(&serve->ends[i], serve->round);
		reply->ends[i]->waiting = level.waiting;
		reply->ends[i]->queued = level.queued;
		reply->ends[i]->room = level.room;
	}
	serve->round++;
	return r;
}

static int look_at_queues(struct serve *serve, struct err *err)
{
	int r = 0;

	for (size_t i = 0; i < serve->n && r == 0; i++)
		if (serve->ends[i].old >= 0 && !serve->ends[i].unread)
			r = end_tcp_look(&serve->ends[i], err);
	return r;
}

/* ---- LISTEN, ACCEPT, CONNECT ---- */

static int do_listen(struct serve *serve, const Pbeam__ReconnectRequest *request,
		     Pbeam__ReconnectReply *reply, struct err *err)
{
	struct inet_address address;
	bool known = inet_address_parse(&request->address, &address);
	int r;

	if (serve->acceptor)
		return err_set(err, -EPROTO, "second request to listen");
	r = acceptor_open(&serve->acceptor, known ? &address : NULL, err);
	if (r < 0)
		return r;
	reply->port4 = acceptor_port4(serve->acceptor);
	reply->port6 = acceptor_port6(serve->acceptor);
	return look_at_queues(serve, err); /* while the source dumps */
}

static int set_cookies(struct serve *serve, const Pbeam__ReconnectRequest *request, struct err *err)
{
	if (request->n_connections != serve->n)
		return err_set(err, -EPROTO, "%zu cookies for %zu connections", request->n_connections,
			       serve->n);
	for (size_t i = 0; i < serve->n; i++) {
		if (serve->ends[i].old < 0)
			continue;
		if (request->connections[i]->cookie.len != ACCEPTOR_COOKIE_SIZE)
			return err_set(err, -EPROTO, "connection %zu has no cookie", i);
		memcpy(serve->ends[i].cookie, request->connections[i]->cookie.data, ACCEPTOR_COOKIE_SIZE);
	}
	return 0;
}

/* Claims the connection for the end with this cookie. A cookie is valid once. */
static bool serve_claim(void *arg, const uint8_t cookie[ACCEPTOR_COOKIE_SIZE], int sock)
{
	struct serve *serve = arg;

	for (size_t i = 0; i < serve->n; i++) {
		struct end_tcp *end = &serve->ends[i];

		if (end->old < 0 || end->fresh >= 0 || memcmp(end->cookie, cookie, ACCEPTOR_COOKIE_SIZE) != 0)
			continue;
		end->fresh = sock;
		return true;
	}
	return false;
}

/* Fills the ends that have been claimed since. Returns their number, or -errno. */
static int fill_claimed(struct serve *serve, bool *done, struct err *err)
{
	int n = 0;

	for (size_t i = 0; i < serve->n; i++) {
		int r;

		if (serve->ends[i].fresh < 0 || done[i])
			continue;
		r = end_tcp_fill(&serve->ends[i], false, err);
		if (r < 0)
			return r;
		done[i] = true;
		n++;
	}
	return n;
}

static int do_accept(struct serve *serve, const Pbeam__ReconnectRequest *request, struct err *err)
{
	const uint64_t end_ns = io_now_ns(CLOCK_MONOTONIC) + ACCEPT_MS * 1000000ull;
	auto_free bool *done = calloc(serve->n + 1, sizeof(*done));
	struct pollfd channel = {.fd = serve->channel, .events = POLLIN};
	int missing = 0, r = done ? set_cookies(serve, request, err) : err_code(err, -ENOMEM, "accept");

	if (r == 0)
		r = serve->acceptor ? look_at_queues(serve, err)
				    : err_set(err, -EPROTO, "request to accept before one to listen");
	if (r < 0)
		return r;
	for (size_t i = 0; i < serve->n; i++)
		missing += serve->ends[i].old >= 0;
	while (missing) {
		r = acceptor_wait(serve->acceptor, ACCEPT_LOOK_MS, serve->channel, serve_claim, serve, err);
		if (r >= 0)
			r = fill_claimed(serve, done, err);
		if (r < 0)
			return r;
		missing -= r;
		if (missing && poll(&channel, 1, 0) > 0)
			return err_set(err, -ECANCELED, "the migration was cancelled");
		if (missing && io_now_ns(CLOCK_MONOTONIC) > end_ns)
			return err_set(err, -ETIMEDOUT, "%d connections were not made again within %d s",
				       missing, ACCEPT_MS / 1000);
	}
	r = fault_point("reconnect-filled", err);
	serve->filled = r >= 0;
	return r < 0 ? r : 0;
}

static int connect_end(struct end_tcp *end, const ProtobufCBinaryData *address, struct err *err)
{
	int r;

	if (end->fresh < 0)
		end->fresh = socket(end->family, SOCK_STREAM | SOCK_CLOEXEC, IPPROTO_TCP);
	if (end->fresh < 0)
		return err_sys(err, "make a TCP socket");
	r = end_tcp_connect(end->fresh, address, end->cookie, err);
	return r < 0 ? r : end_tcp_fill(end, true, err);
}

static int do_connect(struct serve *serve, const Pbeam__ReconnectRequest *request, struct err *err)
{
	int r = set_cookies(serve, request, err);

	if (r == 0)
		r = look_at_queues(serve, err);
	for (size_t i = 0; i < serve->n && r == 0; i++)
		if (serve->ends[i].old >= 0)
			r = connect_end(&serve->ends[i], &request->connections[i]->address, err);
	serve->filled = r == 0;
	return r;
}

/* ---- COMMIT ---- */

/* The program keeps its names for both ends. */
static int serve_keep_name(struct serve *serve, const struct end_tcp *end, struct err *err)
{
	struct name_socket name = {0};
	struct stat st;
	int r = 0;

	if (end->fresh < 0 || fstat(end->fresh, &st) < 0)
		return 0;
	if (names_socket_get(serve->names, end->ino, &name) < 0)
		memset(&name, 0, sizeof(name));
	if (!name.own.sa.sa_family)
		memcpy(&name.own, &end->own.any, end->own.len);
	if (!name.peer.sa.sa_family)
		memcpy(&name.peer, &end->peer.any, end->peer.len);
	r = names_socket_set(serve->names, st.st_ino, &name);
	if (r == 0)
		names_socket_forget(serve->names, end->ino);
	return r < 0 ? err_code(err, r, "keep the addresses of a connection") : 0;
}

static bool holds_some(const struct serve *serve)
{
	for (size_t i = 0; i < serve->n; i++)
		if (serve->ends[i].old >= 0)
			return true;
	return false;
}

/* After the commit errors are no refusal; they are logged too. */
static int do_commit(struct serve *serve, struct err *err)
{
	int r;

	if ((holds_some(serve) && !serve->filled) || (serve->callers.nports && !serve->callers.led))
		return err_set(err, -EPROTO, "the new connections are not ready");
	reconnect_callers_commit(&serve->callers, serve->names);
	r = reconnect_hold_replace(&serve->hold, serve->ends, serve->n, err);
	for (size_t i = 0; i < serve->n && r == 0; i++) {
		r = serve_keep_name(serve, &serve->ends[i], err);
		end_tcp_drop_old(&serve->ends[i]);
	}
	reconnect_hold_free(&serve->hold);
	for (size_t i = 0; i < serve->n; i++)
		end_tcp_free(&serve->ends[i]);
	reconnect_callers_free(&serve->callers);
	free(serve->ends);
	serve->ends = NULL;
	serve->n = 0;
	serve->filled = false;
	return r;
}

static int do_lead(struct serve *serve, const Pbeam__ReconnectRequest *request, struct err *err)
{
	int r = reconnect_callers_lead(&serve->callers, request, err);

	return r < 0 ? r : fault_point("reconnect-led", err);
}

/* ---- the channel ---- */

static int serve_request(struct serve *serve, const Pbeam__ReconnectRequest *request,
			 Pbeam__ReconnectReply *reply, struct err *err)
{
	switch ((int)request->operation) {
	case PBEAM__RECONNECT_REQUEST__OPERATION__HOLD:
		return do_hold(serve, request, reply, err);
	case PBEAM__RECONNECT_REQUEST__OPERATION__DRAIN:
		return do_drain(serve, reply, err);
	case PBEAM__RECONNECT_REQUEST__OPERATION__LISTEN:
		return do_listen(serve, request, reply, err);
	case PBEAM__RECONNECT_REQUEST__OPERATION__ACCEPT:
		return do_accept(serve, request, err);
	case PBEAM__RECONNECT_REQUEST__OPERATION__CONNECT:
		return do_connect(serve, request, err);
	case PBEAM__RECONNECT_REQUEST__OPERATION__LEAD:
		return do_lead(serve, request, err);
	case PBEAM__RECONNECT_REQUEST__OPERATION__COMMIT:
		return do_commit(serve, err);
	default:
		return err_set(err, -EPROTO, "request %d is not known", (int)request->operation);
	}
}

/* Serves one request. -errno: the channel is lost. */
static int serve_reply(struct serve *serve, const struct frame *frame, struct err *err)
{
	Pbeam__ReconnectReply *reply = message_new(&pbeam__reconnect_reply__descriptor);
	Pbeam__ReconnectRequest *request = NULL;
	struct err why = ERR_INIT;
	int r = -EPROTO;

	if (frame->type == PBEAM__CHANNEL_MESSAGE__RECONNECT_REQUEST)
		request = (void *)frame_unpack(frame, &pbeam__reconnect_request__descriptor, &why);
	if (request && reply)
		r = serve_request(serve, request, reply, &why);
	message_free(request);
	if (r < 0) {
		log_info("reconnect: %s", why.text);
		rpc_refuse(serve->channel, &why);
		r = 0;
	} else {
		r = rpc_reply(serve->channel, &reply->base, err);
	}
	message_free(reply);
	return r;
}

static void on_undecided(void *arg, bool undecided)
{
	const struct serve *serve = arg;

	record_mark_undecided(&serve->hold.group, undecided);
}

static bool was_committed(struct serve *serve)
{
	struct record record;
	bool committed;

	record_init(&record, serve->migration);
	record.undecided = on_undecided;
	record.undecided_arg = serve;
	committed = record_abort(&record) == 1;
	record_close(&record);
	return committed;
}

int reconnect_serve(struct names *names, int channel)
{
	struct serve serve = {.names = names, .channel = channel};
	struct err err = ERR_INIT;
	struct frame frame;
	int r;

	prctl(PR_SET_NAME, "scip-reconnect");
	prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY); /* Yama: the holders take the new sockets from us */
	reconnect_hold_init(&serve.hold, names);
	while ((r = frame_recv(channel, &frame, &err)) > 0) {
		r = serve_reply(&serve, &frame, &err);
		frame_free(&frame);
		if (r < 0)
			break;
	}
	if (r < 0)
		log_info("reconnect: %s", err.text);
	/* The coordinator has ended; the registry has the outcome. */
	if ((serve.filled || serve.callers.led) && serve.migration[0] && was_committed(&serve)) {
		err_clear(&err);
		if (do_commit(&serve, &err) < 0)
			log_error("reconnect: %s", err.text);
	}
	for (size_t i = 0; i < serve.n; i++)
		end_tcp_free(&serve.ends[i]);
	reconnect_hold_free(&serve.hold);
	reconnect_callers_end(&serve.callers, names);
	free(serve.ends);
	acceptor_close(serve.acceptor);
	close(channel);
	return r < 0;
}

int reconnect_main(void)
{
	struct err err = ERR_INIT;
	struct names *names;

	if (fcntl(CHANNEL_FD, F_SETFD, FD_CLOEXEC) < 0 || names_open(&names, &err) < 0) {
		log_error("reconnect: %s", err.text[0] ? err.text : "there is no channel");
		return EXIT_FAILURE;
	}
	return reconnect_serve(names, CHANNEL_FD);
}
