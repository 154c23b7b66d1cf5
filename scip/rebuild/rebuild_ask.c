/* Requests to the keeper and to husks. */
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#include "base/io.h"
#include "proto/message.h"
#include "proto/rpc.h"
#include "scip/rebuild/rebuild_parts.h"

enum { PATIENCE_MS = 10000, LOOK_ANYWAY_NS = 200000000 };

/* A husk is in the name table before the keeper replies. Its scip changes the entry when it has taken the
 * husk over, and rings the bell. The entry of a husk that has died goes without a bell. */
static int wait_for_scip(struct rebuild *rebuild, pid_t rpid, struct name_process *process)
{
	uint64_t end = io_now_ns(CLOCK_MONOTONIC) + PATIENCE_MS * 1000000ull;

	while (io_now_ns(CLOCK_MONOTONIC) < end) {
		uint32_t seen = bell_count(&rebuild->options->signs->taken);

		if (names_process_find_real(rebuild->names, (struct rpid){rpid}, process) < 0)
			return err_set(rebuild->err, -ESRCH,
				       "process %d, made for it, was killed before its scip had it; the log "
				       "says why if its scip could not attach to it (under strace, for "
				       "instance)",
				       rpid);
		if (process->scip.n && process->state == NAME_STATE_FROZEN)
			return 0;
		bell_wait(&rebuild->options->signs->taken, seen, LOOK_ANYWAY_NS);
	}
	return err_set(rebuild->err, -ETIMEDOUT, "no scip has taken over the husk %d", rpid);
}

int rebuild_husk_connect(struct rebuild *rebuild, pid_t rpid)
{
	struct name_process process;
	int r = wait_for_scip(rebuild, rpid, &process);

	return r < 0 ? r : scip_link_connect(process.scip, rebuild->err);
}

int rebuild_ask_keeper(struct rebuild *rebuild, uint32_t type, const ProtobufCMessage *request, pid_t *rpid)
{
	Pbeam__KeeperReply *reply = NULL;
	int r = rpc_call(rebuild->options->keeper_socket, "the keeper of the job", type, request,
			 &pbeam__keeper_reply__descriptor, &reply, rebuild->err);

	if (r == 0 && rpid)
		*rpid = reply->value;
	message_free(reply);
	return r;
}

int64_t rebuild_husk_call(struct rebuild *rebuild, int node, int64_t nr, const uint64_t args[6])
{
	Pbeam__ScipCall__One one = PBEAM__SCIP_CALL__ONE__INIT;
	Pbeam__ScipCall__One *ones[1] = {&one};
	Pbeam__ScipCall request = PBEAM__SCIP_CALL__INIT;
	ProtobufCMessage *answer = NULL;
	Pbeam__ScipCalled *called;
	uint64_t copy[6];
	int64_t ret;
	int r;

	memcpy(copy, args, sizeof(copy));
	one.number = nr;
	one.n_args = 6;
	one.args = copy;
	request.n_calls = 1;
	request.calls = ones;
	r = scip_link_call(rebuild->made[node].sock, PBEAM__SCIP_REQUEST__SCIP_RESTORE_CALL, &request.base,
			   &pbeam__scip_called__descriptor, &answer, rebuild->err);
	if (r < 0)
		return r;
	called = (Pbeam__ScipCalled *)(void *)answer;
	ret = called->n_results == 1 ? called->results[0] : -EPROTO;
	message_free(answer);
	if (ret < 0)
		err_code(rebuild->err, (int)ret, "call %ld of vpid %d", (long)nr,
			 rebuild->plan.nodes[node].vpid);
	return ret;
}
