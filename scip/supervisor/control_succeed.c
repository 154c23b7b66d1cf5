/* SCIP_SUCCEED: the scip executes another version's file, and the new program answers. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/rpc.h"
#include "scip/supervisor/control_request.h"

int control_succeed(struct control_request *request, struct err *err)
{
	const Pbeam__ScipSucceed *wish = (const void *)request->message;
	char *program = strndup((const char *)wish->program.data, wish->program.len);

	if (!program)
		return -ENOMEM;
	if (program[0] != '/') {
		free(program);
		return err_set(err, -EINVAL, "the path of the new scip is not absolute");
	}
	free(request->control->successor);
	request->control->successor = program;
	request->connection->waiting = PBEAM__SCIP_REQUEST__SCIP_SUCCEED;
	return CONTROL_LATER;
}

const char *control_successor(const struct control *control)
{
	return control ? control->successor : NULL;
}

void control_refuse_successor(struct control *control, const struct err *why)
{
	for (unsigned i = 0; i < CONTROL_CONNECTIONS_MAX; i++) {
		struct control_connection *c = &control->connections[i];

		if (c->sock < 0 || c->waiting != PBEAM__SCIP_REQUEST__SCIP_SUCCEED)
			continue;
		c->waiting = PBEAM__SCIP_REQUEST__SCIP_NONE;
		rpc_refuse(c->sock, why);
	}
	free(control->successor);
	control->successor = NULL;
}

int control_inherit(struct control **out, const struct seat *seat, int listener, int connection,
		    const char *path, struct err *err)
{
	struct control *control;

	if (fcntl(listener, F_SETFD, FD_CLOEXEC) < 0 || fcntl(connection, F_SETFD, FD_CLOEXEC) < 0)
		return err_set(err, -EPROTO, "the control socket is not open");
	control = calloc(1, sizeof(*control));
	if (!control)
		return -ENOMEM;
	control->seat = seat;
	control->listener = listener;
	snprintf(control->path, sizeof(control->path), "%s", path);
	for (unsigned i = 0; i < CONTROL_CONNECTIONS_MAX; i++)
		control->connections[i].sock = -1;
	control->connections[0] = (struct control_connection){
		.sock = connection, .froze = true, .waiting = PBEAM__SCIP_REQUEST__SCIP_SUCCEED};
	*out = control;
	return 0;
}

void control_confirm_successor(struct control *control)
{
	Pbeam__ScipDone done = PBEAM__SCIP_DONE__INIT;

	control->connections[0].waiting = PBEAM__SCIP_REQUEST__SCIP_NONE;
	(void)!rpc_reply(control->connections[0].sock, &done.base, NULL); /* the next read shows the end */
}
