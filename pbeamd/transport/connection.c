#include "pbeamd/transport/connection.h"

#include <stdlib.h>
#include <unistd.h>

#include "base/list.h"
#include "base/log.h"
#include "pbeamd/transport/server.h"
#include "proto/rpc.h"
#include "proto/stream.h"

void connection_close(struct connection *connection)
{
	struct server *server = connection->server;

	list_remove(&server->connections, connection);
	server->calls->closed(connection);
	stream_close(&connection->stream);
	free(connection);
}

void connection_send(struct connection *connection, uint32_t type, const ProtobufCMessage *message,
		     const int *fds, int nfds)
{
	if (stream_send(&connection->stream, type, message, fds, nfds) < 0)
		connection->closing = true;
}

void connection_relay(struct connection *connection, struct frame *frame)
{
	if (stream_relay(&connection->stream, frame) < 0)
		connection->closing = true;
}

void connection_reply(struct connection *connection, const ProtobufCMessage *message)
{
	connection->phase = CONNECTION_GREETED;
	connection_send(connection, PBEAM__RPC__RPC_REPLY, message, NULL, 0);
}

void connection_refuse(struct connection *connection, const struct err *err)
{
	const Pbeam__Failed failed = rpc_failed(err);

	connection->phase = CONNECTION_GREETED;
	connection_send(connection, PBEAM__RPC__RPC_FAILED, &failed.base, NULL, 0);
}

static void connection_on_frame(struct stream *stream, struct frame *frame)
{
	struct connection *connection = stream->owner;

	if (!connection->server->calls->request(connection, frame))
		connection_close(connection);
}

static void connection_on_end(struct stream *stream, const struct err *err)
{
	if (err->code)
		log_info("connection: %s", err->text);
	connection_close(stream->owner);
}

static void on_drained(struct stream *stream)
{
	struct connection *connection = stream->owner;

	if (connection->closing)
		connection_close(connection);
}

struct connection *connection_open(struct server *server, int fd)
{
	static const struct stream_calls calls = {connection_on_frame, connection_on_end, on_drained};
	struct connection *connection = calloc(1, sizeof(*connection));

	if (!connection) {
		close(fd);
		return NULL;
	}
	if (stream_open(&connection->stream, server->base, fd, &calls, connection) < 0) {
		log_error("cannot accept a connection: no memory");
		free(connection);
		return NULL;
	}
	connection->server = server;
	connection->next = server->connections;
	server->connections = connection;
	return connection;
}
