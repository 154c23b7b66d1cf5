#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <time.h>

#include "base/dirs.h"
#include "proto/frame.h"
#include "proto/message.h"
#include "scip/restore/coordinate.h"

enum { LOOK_AGAIN_NS = 100000, LOOKS = 50000 };

/* Its scip enters itself in the table when it has taken the process over, which is just before or just after
 * we hear of the process. */
static int wait_for_scip(struct coordinate *coordinate, pid_t rpid, struct name_process *process)
{
	for (int i = 0; i < LOOKS; i++) {
		const struct timespec pause = {0, LOOK_AGAIN_NS};

		if (names_process_find_real(coordinate->names, (struct rpid){rpid}, process) == 0 &&
		    process->scip.n && process->state == NAME_STATE_FROZEN)
			return 0;
		nanosleep(&pause, NULL);
	}
	return err_set(coordinate->err, -ETIMEDOUT, "no scip has taken over the husk %d", rpid);
}

int link_open(struct coordinate *coordinate, pid_t rpid)
{
	char dir[PATH_MAX], path[PATH_MAX + 16];
	struct name_process process;
	int r = wait_for_scip(coordinate, rpid, &process);

	if (r == 0)
		r = dirs_runtime(dir, "scip", coordinate->err);
	if (r < 0)
		return r;
	snprintf(path, sizeof(path), "%s/%d", dir, process.scip.n);
	return frame_connect(path, coordinate->err);
}

int link_ask(int sock, uint32_t type, const ProtobufCMessage *message, const int *fds, int nfds,
	     struct err *err)
{
	return frame_send(sock, type, message, fds, nfds, err);
}

static int refused(const struct frame *frame, struct err *err)
{
	Pbeam__ScipFailed *failed = (void *)frame_unpack(frame, &pbeam__scip_failed__descriptor, err);
	int r = -EPROTO;

	if (!failed)
		return r;
	r = failed->code < 0 ? failed->code : -EIO;
	err_set(err, r, "%s", failed->text);
	message_free(failed);
	return r;
}

int link_answer(int sock, const ProtobufCMessageDescriptor *kind, ProtobufCMessage **out, struct err *err)
{
	struct frame frame = {0};
	ProtobufCMessage *message = NULL;
	int r = frame_recv(sock, &frame, err);

	if (r < 0)
		return err_wrap(err, r, "answer of a scip");
	if (r == 0)
		return err_set(err, -ECONNRESET, "a process or its scip ended in the middle of the restore");
	if (frame.type == PBEAM__SCIP_REQUEST__SCIP_FAILED)
		r = refused(&frame, err);
	else if (frame.type != PBEAM__SCIP_REQUEST__SCIP_REPLY)
		r = err_set(err, -EPROTO, "a scip answered with %u", frame.type);
	else {
		message = frame_unpack(&frame, kind, err);
		r = message ? 0 : -EPROTO;
	}
	frame_free(&frame);
	if (r == 0 && out)
		*out = message;
	else
		message_free(message);
	return r;
}

int link_call(int sock, uint32_t type, const ProtobufCMessage *message,
	      const ProtobufCMessageDescriptor *kind, ProtobufCMessage **out, struct err *err)
{
	int r = link_ask(sock, type, message, NULL, 0, err);

	return r < 0 ? r : link_answer(sock, kind, out, err);
}
