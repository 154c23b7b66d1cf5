#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "proto/control.pb-c.h"
#include "proto/rpc.h"
#include "scip/job/requests.h"

/* In a child of the keeper: blocking, it may take as long as the scip takes. */
static int ask_scip_for_stack(const struct job *job, struct vpid target, char **text, struct err *err)
{
	struct name_process process;
	struct frame answer;
	ProtobufCMessage *message;
	auto_close int sock = -1;
	int r = names_process_get(job->names, target, &process);

	if (r < 0)
		return err_set(err, -ESRCH, "vpid %d has ended", target.n);
	if (process.scip.n <= 0)
		return err_set(err, -EAGAIN, "vpid %d is just being born; try again", target.n);
	sock = frame_connect_to("scip", process.scip.n, err);
	if (sock < 0)
		return sock;
	r = frame_send(sock, PBEAM__SCIP_REQUEST__SCIP_STACK, NULL, NULL, 0, err);
	if (r == 0)
		r = frame_recv(sock, &answer, err);
	if (r <= 0)
		return r < 0 ? r : err_set(err, -ESRCH, "vpid %d has ended", target.n);
	if (answer.type == PBEAM__RPC__RPC_FAILED) {
		message = frame_unpack(&answer, &pbeam__failed__descriptor, err);
		if (message)
			err_set(err, -EIO, "%s", ((Pbeam__Failed *)message)->text);
		return -EIO;
	}
	message = frame_unpack(&answer, &pbeam__scip_stack__descriptor, err);
	if (!message)
		return -EPROTO;
	*text = ((Pbeam__ScipStack *)message)->text;
	return 0;
}

/* The connection belongs to the child from here on. */
int request_stack(struct request *request, const ProtobufCMessage *message, struct err *err)
{
	const Pbeam__Target *wish = (const Pbeam__Target *)message;
	pid_t child = fork();

	if (child < 0)
		return err_sys(err, "start a process to look at the stack");
	if (child == 0) {
		Pbeam__StackReply answer = PBEAM__STACK_REPLY__INIT;
		struct err problem = ERR_INIT;

		fcntl(request->fd, F_SETFL, 0); /* blocking: the text may be long */
		if (ask_scip_for_stack(request->job, request_target(request->job, wish), &answer.text,
				       &problem) < 0)
			request_refuse(request, &problem);
		else
			request_reply(request, PBEAM__RPC__RPC_REPLY, &answer.base, NULL, 0);
		_exit(0);
	}
	return 1;
}
