#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "pbeamd/server.h"

struct output {
	struct output *next;
	uint8_t *bytes;
	size_t len, done;
	int fds[FRAME_FDS_MAX];
	int nfds;
};

static void free_output(struct output *output)
{
	for (int i = 0; i < output->nfds; i++)
		if (output->fds[i] >= 0)
			close(output->fds[i]);
	free(output->bytes);
	free(output);
}

void connection_close(struct connection *connection)
{
	struct server *server = connection->server;

	for (struct connection **p = &server->connections; *p; p = &(*p)->next)
		if (*p == connection) {
			*p = connection->next;
			break;
		}
	if (connection->forward)
		forward_end(connection->forward);
	if (connection->readable)
		event_free(connection->readable);
	if (connection->writable)
		event_free(connection->writable);
	while (connection->first) {
		struct output *output = connection->first;

		connection->first = output->next;
		free_output(output);
	}
	frame_reader_reset(&connection->reader);
	close(connection->fd);
	free(connection);
}

/* Writes what the socket takes. Returns false when the connection is gone. */
static bool write_some(struct connection *connection)
{
	while (connection->first) {
		struct output *output = connection->first;
		ssize_t n = frame_send_some(connection->fd, output->bytes + output->done,
					    output->len - output->done, output->fds,
					    output->done ? 0 : output->nfds);

		if (n == -EAGAIN)
			return event_add(connection->writable, NULL) == 0;
		if (n < 0)
			return false;
		output->done += (size_t)n;
		if (output->done < output->len)
			continue;
		connection->first = output->next;
		if (!connection->first)
			connection->last = NULL;
		free_output(output);
	}
	return true;
}

static void on_writable(evutil_socket_t fd, short what, void *arg)
{
	struct connection *connection = arg;

	if (!write_some(connection) || (connection->closing && !connection->first))
		connection_close(connection);
}

/* A connection that cannot be written to is noticed by its read event: nothing is closed here, callers hold
 * it. */
static void queue(struct connection *connection, struct output *output)
{
	if (connection->last)
		connection->last->next = output;
	else
		connection->first = output;
	connection->last = output;
	if (event_add(connection->writable, NULL) < 0)
		log_error("a reply cannot be sent: no memory");
}

void connection_send(struct connection *connection, uint32_t type, const ProtobufCMessage *message,
		     const int *fds, int nfds)
{
	struct output *output = calloc(1, sizeof(*output));
	struct err err = ERR_INIT;

	if (!output || frame_encode(type, message, nfds, &output->bytes, &output->len, &err) < 0) {
		log_error("a reply cannot be made: %s", output ? err.text : "no memory");
		free(output);
		connection->closing = true;
		return;
	}
	for (int i = 0; i < nfds; i++)
		output->fds[output->nfds++] = fcntl(fds[i], F_DUPFD_CLOEXEC, 3);
	queue(connection, output);
}

void connection_relay(struct connection *connection, struct frame *frame)
{
	struct output *output = calloc(1, sizeof(*output));

	if (output && frame_encode(frame->type, NULL, frame->nfds, &output->bytes, &output->len, NULL) == 0) {
		uint32_t len = (uint32_t)frame->len;
		uint8_t *bytes = realloc(output->bytes, output->len + frame->len);

		if (bytes) {
			/* the body is not looked into: its length goes into the header, itself behind it */
			memcpy(bytes + 12, &len, sizeof(len));
			if (frame->len)
				memcpy(bytes + output->len, frame->body, frame->len);
			output->bytes = bytes;
			output->len += frame->len;
			for (int i = 0; i < frame->nfds; i++)
				output->fds[output->nfds++] = steal_fd(&frame->fds[i]);
			queue(connection, output);
			return;
		}
		free(output->bytes);
	}
	free(output);
	connection->closing = true;
}

void connection_reply(struct connection *connection, const ProtobufCMessage *message)
{
	connection->phase = CONNECTION_GREETED;
	connection_send(connection, PBEAM__DAEMON_REQUEST__DAEMON_REPLY, message, NULL, 0);
}

void connection_refuse(struct connection *connection, const struct err *err)
{
	Pbeam__Failed failed = PBEAM__FAILED__INIT;

	failed.code = err->code;
	failed.text = (char *)(uintptr_t)err->text;
	connection->phase = CONNECTION_GREETED;
	connection_send(connection, PBEAM__DAEMON_REQUEST__DAEMON_FAILED, &failed.base, NULL, 0);
}

static void on_readable(evutil_socket_t fd, short what, void *arg)
{
	struct connection *connection = arg;
	struct err err = ERR_INIT;
	struct frame frame;
	int r = frame_reader_step(&connection->reader, fd, &frame, &err);
	bool go_on;

	if (r == -EAGAIN)
		return;
	if (r <= 0) {
		if (r < 0)
			log_info("connection: %s", err.text);
		connection_close(connection);
		return;
	}
	go_on = handlers_dispatch(connection, &frame);
	frame_free(&frame);
	if (!go_on)
		connection_close(connection);
}

void connection_open(struct server *server, int fd)
{
	struct connection *connection = calloc(1, sizeof(*connection));

	if (!connection || fcntl(fd, F_SETFL, O_NONBLOCK) < 0) {
		free(connection);
		close(fd);
		return;
	}
	connection->server = server;
	connection->fd = fd;
	connection->next = server->connections;
	server->connections = connection;
	connection->readable = event_new(server->base, fd, EV_READ | EV_PERSIST, on_readable, connection);
	connection->writable = event_new(server->base, fd, EV_WRITE, on_writable, connection);
	if (!connection->readable || !connection->writable || event_add(connection->readable, NULL) < 0) {
		log_error("a connection is turned away: no memory");
		connection_close(connection);
	}
}
