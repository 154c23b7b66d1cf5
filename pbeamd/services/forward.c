/*
 * A request that a keeper carries out. The keeper's socket is local and its backlog is never full for long,
 * so connecting and sending the small request block for a moment at most. The reply, which may take minutes,
 * comes by events. Frames are relayed with their descriptors; only a refusal is unpacked, to put the target's
 * name in front of it.
 */
#include "pbeamd/services/forward.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "pbeamd/transport/connection.h"
#include "pbeamd/transport/server.h"
#include "proto/rpc.h"

struct forward {
	struct connection *connection;
	struct forward_request request;
	int fd;
	struct event *readable;
	struct frame_reader reader;
};

void forward_end(struct forward *forward)
{
	forward->connection->forward = NULL;
	if (forward->readable)
		event_free(forward->readable);
	frame_reader_reset(&forward->reader);
	if (forward->fd >= 0)
		close(forward->fd);
	if (forward->request.release)
		forward->request.release(forward->request.arg);
	free(forward);
}

/* The keeper, or its job, has ended. */
static void forward_on_gone(struct forward *forward, const char *text)
{
	struct connection *connection = forward->connection;
	struct err err = ERR_INIT;

	/* `gone` may hand the connection to a worker, which closes it and ends the forward with it */
	if (forward->request.gone && forward->request.gone(connection, forward->request.arg))
		return;
	err_set(&err, -ESRCH, "%s: %s", forward->request.who, text);
	forward_end(forward);
	connection_refuse(connection, &err);
}

static void on_failed(struct forward *forward, const struct frame *frame)
{
	struct connection *connection = forward->connection;
	struct err err = ERR_INIT;
	Pbeam__Failed *failed = (Pbeam__Failed *)frame_unpack(frame, &pbeam__failed__descriptor, &err);
	int code = failed ? failed->code : -EPROTO;

	if (failed && !strncmp(failed->text, "vpid ", 5))
		err_set(&err, code, "%s", failed->text);
	else if (failed)
		err_set(&err, code, "%s: %s", forward->request.who, failed->text);
	if (failed)
		protobuf_c_message_free_unpacked(&failed->base, NULL);
	if (code == -ESRCH && forward->request.gone) {
		forward_on_gone(forward, "it has ended");
		return;
	}
	forward_end(forward);
	connection_refuse(connection, &err);
}

static void forward_on_answer(evutil_socket_t fd, short what, void *arg)
{
	struct forward *forward = arg;
	struct connection *connection = forward->connection;
	struct err err = ERR_INIT;
	struct frame frame;
	int r = frame_reader_step(&forward->reader, fd, &frame, &err);

	if (r == -EAGAIN)
		return;
	if (r <= 0) {
		if (r < 0)
			log_warn("keeper %d: %s", forward->request.keeper.n, err.text);
		forward_on_gone(forward,
				"it ended, or its supervisor was killed, before the request was done");
		return;
	}
	switch (frame.type) {
	case PBEAM__RPC__RPC_FAILED:
		on_failed(forward, &frame);
		break;
	case PBEAM__RPC__RPC_REPLY:
		forward_end(forward);
		connection->phase = CONNECTION_GREETED;
		connection_relay(connection, &frame);
		break;
	default:
		connection_relay(connection, &frame);
		break;
	}
	frame_free(&frame);
}

static int connect_keeper(const struct forward_request *request, struct err *err)
{
	int r = frame_connect_to("job", request->keeper.n, err);

	if (r == -ENOENT || r == -ECONNREFUSED)
		return err_set(err, -ESRCH, "%s: it has ended", request->who);
	return r;
}

int forward_begin(struct connection *connection, const struct forward_request *request, struct err *err)
{
	struct forward *forward;
	auto_close int fd = connect_keeper(request, err);
	int r = fd;

	if (fd >= 0)
		r = frame_send(fd, request->type, request->message, NULL, 0, err);
	if (r == -EPIPE || r == -ECONNRESET)
		r = err_set(err, -ESRCH, "%s: it has ended", request->who);
	if (r == 0 && fcntl(fd, F_SETFL, O_NONBLOCK) < 0)
		r = err_sys(err, "%s: reach its keeper", request->who);
	if (r < 0)
		return r;
	forward = calloc(1, sizeof(*forward));
	if (!forward)
		return err_code(err, -ENOMEM, "%s: pass the request on", request->who);
	forward->connection = connection;
	forward->readable =
		event_new(connection->server->base, fd, EV_READ | EV_PERSIST, forward_on_answer, forward);
	if (!forward->readable || event_add(forward->readable, NULL) < 0) {
		if (forward->readable)
			event_free(forward->readable);
		free(forward);
		return err_code(err, -ENOMEM, "%s: pass the request on", request->who);
	}
	forward->request = *request;
	forward->request.message = NULL;
	forward->fd = steal_fd(&fd);
	connection->forward = forward;
	connection->phase = CONNECTION_BUSY;
	return 0;
}
