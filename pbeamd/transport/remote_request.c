#include "pbeamd/transport/remote_request.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/list.h"
#include "base/log.h"
#include "pbeamd/transport/cluster.h"
#include "pbeamd/transport/connection.h"
#include "pbeamd/transport/peer.h"
#include "pbeamd/transport/server.h"
#include "proto/message.h"
#include "proto/rpc.h"
#include "proto/stream.h"

/* A request of this host. */
struct remote_call {
	struct remote_call *next;
	int64_t id;
	struct host *host; /* NULL: this one */
	remote_frame_fn came;
	void *arg;
};

/* A request to this host, from a peer or from this host itself (peer NULL). */
struct guest {
	struct guest *next;
	struct cluster *cluster;
	struct peer *peer;
	uint64_t id;
	struct stream stream; /* to the connection that answers */
};

enum { GUESTS_MAX = 512, FAILED_MAX = ERR_TEXT_MAX + 64 };

/* ---- requests of this host ---- */

static struct remote_call *find_call(const struct cluster *cluster, int64_t id, const struct host *host)
{
	for (struct remote_call *call = cluster->remote_calls; call; call = call->next)
		if (call->id == id && call->host == host)
			return call;
	return NULL;
}

static void forget_call(struct cluster *cluster, struct remote_call *call)
{
	list_remove(&cluster->remote_calls, call);
	free(call);
}

static void remote_on_reply(struct cluster *cluster, struct remote_call *call, uint32_t type,
			    const void *body, size_t len)
{
	remote_frame_fn fn = call->came;
	void *arg = call->arg;

	if (type != PBEAM__RPC__RPC_PROGRESS)
		forget_call(cluster, call);
	fn(arg, type, body, len);
}

/* ---- the host that replies ---- */

static void forget_guest(struct guest *guest)
{
	list_remove(&guest->cluster->guests, guest);
	stream_close(&guest->stream);
	free(guest);
}

static void remote_send_reply(struct peer *peer, uint64_t id, uint32_t type, const void *body, size_t len)
{
	bool progress = type == PBEAM__RPC__RPC_PROGRESS;
	Pbeam__PeerReply reply = PBEAM__PEER_REPLY__INIT;

	reply.id = id;
	reply.type = type;
	reply.body.data = (uint8_t *)(uintptr_t)body;
	reply.body.len = len;
	if (stream_send(&peer->stream,
			progress ? PBEAM__CHANNEL_MESSAGE__PEER_PROGRESS : PBEAM__CHANNEL_MESSAGE__PEER_REPLY,
			&reply.base, NULL, 0) < 0)
		log_error("cannot reply to host %s: no memory", peer->name);
}

static void remote_reply_to_guest(struct guest *guest, uint32_t type, const void *body, size_t len)
{
	struct cluster *cluster = guest->cluster;
	struct peer *peer = guest->peer;
	struct remote_call *call;
	uint64_t id = guest->id;

	if (type != PBEAM__RPC__RPC_PROGRESS)
		forget_guest(guest);
	if (peer) {
		remote_send_reply(peer, id, type, body, len);
		return;
	}
	call = find_call(cluster, (int64_t)id, NULL);
	if (call)
		remote_on_reply(cluster, call, type, body, len);
}

static size_t remote_pack_failure(const struct err *err, uint8_t bytes[static FAILED_MAX])
{
	const Pbeam__Failed failed = rpc_failed(err);

	return pbeam__failed__pack(&failed, bytes);
}

static void remote_fail_guest(struct guest *guest, int code, const char *text)
{
	struct err err = ERR_INIT;
	uint8_t bytes[FAILED_MAX];

	err_set(&err, code, "%s", text);
	remote_reply_to_guest(guest, PBEAM__RPC__RPC_FAILED, bytes, remote_pack_failure(&err, bytes));
}

static void remote_on_frame(struct stream *stream, struct frame *frame)
{
	if (frame->nfds > 0)
		remote_fail_guest(stream->owner, -EREMOTE,
				  "descriptors cannot be passed to another host; ask on the host itself");
	else
		remote_reply_to_guest(stream->owner, frame->type, frame->body, frame->len);
}

static void remote_on_end(struct stream *stream, const struct err *err)
{
	remote_fail_guest(stream->owner, -EPIPE, "pbeamd ended before it answered");
}

static int begin_guest(struct cluster *cluster, struct peer *peer, uint64_t id, uint32_t type,
		       const void *body, size_t len, struct err *err)
{
	static const struct stream_calls calls = {remote_on_frame, remote_on_end, NULL};
	struct guest *guest = calloc(1, sizeof(*guest));
	struct connection *connection;
	int ends[2], r;

	if (!guest || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) < 0) {
		free(guest);
		return err_code(err, -ENOMEM, "serve a request from another host");
	}
	*guest = (struct guest){cluster->guests, cluster, peer, id, {.fd = -1}};
	connection = connection_open(cluster->server, ends[0]);
	r = stream_open(&guest->stream, cluster->server->base, ends[1], &calls, guest);
	if (r == 0)
		r = connection ? stream_send_bytes(&guest->stream, type, body, len) : -ENOMEM;
	if (r < 0) {
		stream_close(&guest->stream);
		free(guest);
		if (connection)
			connection_close(connection);
		return err_code(err, r, "serve a request from another host");
	}
	cluster->guests = guest;
	connection->phase = CONNECTION_GREETED;
	connection->passed_on = true;
	return 0;
}

/* ---- sending requests ---- */

static int remote_send_request(struct cluster *cluster, struct host *host, int64_t id, uint32_t type,
			       const void *body, size_t len)
{
	Pbeam__PeerRequest request = PBEAM__PEER_REQUEST__INIT;

	request.id = (uint64_t)id;
	request.type = type;
	request.body.data = (uint8_t *)(uintptr_t)body;
	request.body.len = len;
	request.from = (char *)(uintptr_t)cluster->options->name;
	return peer_send(host, PBEAM__CHANNEL_MESSAGE__PEER_REQUEST, &request.base);
}

int64_t remote_ask(struct cluster *cluster, struct host *host, uint32_t type, const void *body, size_t len,
		   remote_frame_fn fn, void *arg, struct err *err)
{
	struct remote_call *call;
	int64_t id = ++cluster->next_call;
	int r;

	if (host && !host->peer)
		return err_set(err, -EHOSTUNREACH, "host %s is lost; it does not answer", host->name);
	call = calloc(1, sizeof(*call));
	if (!call)
		return err_code(err, -ENOMEM, "send a request to another host");
	r = host ? remote_send_request(cluster, host, id, type, body, len)
		 : begin_guest(cluster, NULL, (uint64_t)id, type, body, len, err);
	if (r < 0) {
		free(call);
		return host ? err_code(err, r, "send a request to host %s", host->name) : r;
	}
	*call = (struct remote_call){cluster->remote_calls, id, host, fn, arg};
	cluster->remote_calls = call;
	return id;
}

void remote_cancel(struct cluster *cluster, int64_t id)
{
	for (struct remote_call *call = cluster->remote_calls; call; call = call->next)
		if (call->id == id) {
			if (call->host && call->host->peer &&
			    remote_send_request(cluster, call->host, id, PBEAM__DAEMON_REQUEST__DAEMON_NONE,
						NULL, 0) < 0)
				log_error("cannot cancel a request on host %s: no memory", call->host->name);
			forget_call(cluster, call);
			return;
		}
}

/* ---- messages of peers ---- */

/* The requests that users may send to another host. */
static bool is_allowed(uint32_t type)
{
	static const uint32_t allowed[] = {
		PBEAM__DAEMON_REQUEST__DAEMON_PS,     PBEAM__DAEMON_REQUEST__DAEMON_CHECKPOINT,
		PBEAM__DAEMON_REQUEST__DAEMON_LOG,    PBEAM__DAEMON_REQUEST__DAEMON_ROLLBACK,
		PBEAM__DAEMON_REQUEST__DAEMON_KILL,   PBEAM__DAEMON_REQUEST__DAEMON_STACK,
		PBEAM__DAEMON_REQUEST__DAEMON_CANCEL, PBEAM__DAEMON_REQUEST__DAEMON_MIGRATE,
		PBEAM__DAEMON_REQUEST__DAEMON_HOSTS,  PBEAM__DAEMON_REQUEST__DAEMON_SIGNAL,
		PBEAM__DAEMON_REQUEST__DAEMON_CALL,   PBEAM__DAEMON_REQUEST__DAEMON_MEMBERS,
		PBEAM__DAEMON_REQUEST__DAEMON_PROC,   PBEAM__DAEMON_REQUEST__DAEMON_COPY,
	};

	for (size_t i = 0; i < sizeof(allowed) / sizeof(allowed[0]); i++)
		if (allowed[i] == type)
			return true;
	return false;
}

static struct guest *find_guest(const struct cluster *cluster, const struct peer *peer, uint64_t id)
{
	for (struct guest *guest = cluster->guests; guest; guest = guest->next)
		if (guest->peer == peer && guest->id == id)
			return guest;
	return NULL;
}

static bool remote_on_request(struct peer *peer, const struct frame *frame)
{
	struct cluster *cluster = peer->cluster;
	Pbeam__PeerRequest *request =
		(Pbeam__PeerRequest *)frame_unpack(frame, &pbeam__peer_request__descriptor, NULL);
	struct err err = ERR_INIT;
	uint8_t bytes[FAILED_MAX];
	struct guest *guest;
	int n = 0;

	if (!request)
		return false;
	guest = find_guest(cluster, peer, request->id);
	for (const struct guest *g = cluster->guests; g; g = g->next)
		n++;
	if (guest)
		forget_guest(guest); /* cancelled; a number is not used twice */
	else if (request->type == PBEAM__DAEMON_REQUEST__DAEMON_NONE)
		; /* the reply is under way */
	else if (!is_allowed(request->type))
		err_set(&err, -EPERM, "request %u cannot be passed to another host", request->type);
	else if (n >= GUESTS_MAX)
		err_set(&err, -EAGAIN, "host %s answers too many requests already", cluster->options->name);
	else if (begin_guest(cluster, peer, request->id, request->type, request->body.data, request->body.len,
			     &err) < 0)
		log_error("%s", err.text);
	if (err.code)
		remote_send_reply(peer, request->id, PBEAM__RPC__RPC_FAILED, bytes,
				  remote_pack_failure(&err, bytes));
	message_free(request);
	return true;
}

static bool on_reply(struct peer *peer, const struct frame *frame)
{
	bool progress = frame->type == PBEAM__CHANNEL_MESSAGE__PEER_PROGRESS;
	Pbeam__PeerReply *reply =
		(Pbeam__PeerReply *)frame_unpack(frame, &pbeam__peer_reply__descriptor, NULL);
	struct remote_call *call;

	if (!reply)
		return false;
	if (progress != (reply->type == PBEAM__RPC__RPC_PROGRESS)) {
		message_free(reply);
		return false;
	}
	call = find_call(peer->cluster, (int64_t)reply->id, peer->host);
	if (call)
		remote_on_reply(peer->cluster, call, reply->type, reply->body.data, reply->body.len);
	message_free(reply);
	return true;
}

bool remote_frame(struct peer *peer, const struct frame *frame)
{
	if (!peer->host)
		return false;
	return frame->type == PBEAM__CHANNEL_MESSAGE__PEER_REQUEST ? remote_on_request(peer, frame)
								   : on_reply(peer, frame);
}

/* ---- ends ---- */

void remote_lost(struct peer *peer)
{
	struct cluster *cluster = peer->cluster;
	struct err err = ERR_INIT;
	uint8_t bytes[FAILED_MAX];
	size_t len;

	for (struct guest *guest = cluster->guests, *next; guest; guest = next) {
		next = guest->next;
		if (guest->peer == peer)
			forget_guest(guest);
	}
	err_set(&err, -ECONNRESET,
		"host %s was lost before it replied; the request may or may not have been carried out",
		peer->name);
	len = remote_pack_failure(&err, bytes);
	for (;;) {
		struct remote_call *call = cluster->remote_calls;

		while (call && (!peer->host || call->host != peer->host))
			call = call->next;
		if (!call)
			return;
		remote_on_reply(cluster, call, PBEAM__RPC__RPC_FAILED, bytes, len);
	}
}

void remote_close(struct cluster *cluster)
{
	while (cluster->guests)
		forget_guest(cluster->guests);
	while (cluster->remote_calls)
		forget_call(cluster, cluster->remote_calls);
}

void remote_leave_child(const struct cluster *cluster)
{
	for (const struct guest *guest = cluster->guests; guest; guest = guest->next)
		close(guest->stream.fd);
}
