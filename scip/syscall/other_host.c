/*
 * Calls about processes of other hosts.
 *
 * A number that belongs to another host (names_place_find()) is not looked up in the kernel. pbeamd
 * forwards the call to the host of the process, and the program gets the result. A process that has
 * left a stub here is asked on its host; the stub is not.
 *
 * In a cluster a program is born with a filter that traps these calls although its own names have not
 * diverged.
 */
#include "scip/syscall/other_host.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "proto/ask.h"
#include "proto/message.h"
#include "proto/rpc.h"

enum { PATIENCE_S = 5 };

int other_host_request(uint32_t type, const ProtobufCMessage *request,
		       const ProtobufCMessageDescriptor *descriptor, void *reply, struct err *err)
{
	auto_close int sock = ask_open("scip " PBEAM_VERSION, err);

	if (sock < 0)
		return sock;
	rpc_set_timeout(sock, PATIENCE_S * 1000);
	return ask_message(sock, type, request, NULL, descriptor, reply, err);
}

int other_host_errno(int code)
{
	switch (code) {
	case -ESRCH:
	case -EPERM:
	case -EINVAL:
	case -EACCES:
	case -EAGAIN:
	case -EBUSY:
	case -E2BIG:
	case -ENOENT:
		return code;
	default:
		return -EHOSTUNREACH;
	}
}

static int other_host_fail(struct call *call, int32_t vpid, int code, const struct err *err)
{
	if (code != -ESRCH)
		log_info("vpid %d: %s of vpid %d: %s", call->process->vpid.n, call->row->name, vpid,
			 err->text);
	return call_answer(call, other_host_errno(code));
}

/* The name table has no places for threads. The number of a thread that has moved here may be in a block
 * of the host where it was born. */
static bool is_own_thread(const struct call *call, int32_t number)
{
	for (const struct tracee *thread = call->process->tracees; thread; thread = thread->next)
		if (thread->vtid.n == number)
			return true;
	return false;
}

bool other_host_has(const struct call *call, int32_t number)
{
	char host[NAME_TEXT_MAX];

	return !is_own_thread(call, number) && number > 0 && number != call->process->vpid.n &&
	       names_place_find(call->process->names, (struct vpid){number}, host) == 0;
}

static int send_signal(const struct call *call, Pbeam__RemoteSignal *wish, int32_t vpid, struct err *err)
{
	Pbeam__Target target = PBEAM__TARGET__INIT;
	Pbeam__Done *done = NULL;
	int r;

	target.vpid = wish->vpid = vpid;
	wish->target = &target;
	wish->from = call->process->vpid.n;
	r = other_host_request(PBEAM__DAEMON_REQUEST__DAEMON_SIGNAL, &wish->base, &pbeam__done__descriptor,
			       &done, err);
	message_free(done);
	return r;
}

int other_host_signal(struct call *call, int32_t vpid, int32_t vtid, int signal, uint64_t info)
{
	Pbeam__RemoteSignal wish = PBEAM__REMOTE_SIGNAL__INIT;
	struct err err = ERR_INIT;
	uint8_t bytes[SIGINFO_BYTES];
	int r;

	if (info) {
		if (call_read(call, info, bytes, sizeof(bytes)) < 0)
			return call_answer(call, -EFAULT);
		wish.siginfo.data = bytes;
		wish.siginfo.len = sizeof(bytes);
	}
	wish.signal = signal;
	wish.vtid = vtid;
	r = send_signal(call, &wish, vpid, &err);
	return r < 0 ? other_host_fail(call, vpid, r, &err) : call_answer(call, 0);
}

/* ---- calls that are not forwarded ---- */

/* A frozen entry is a stub whose process is coming back, or a process that is held for a moment. */
bool other_host_has_stub(const struct call *call, int32_t vpid)
{
	struct name_process process;

	return names_process_get(call->process->names, (struct vpid){vpid}, &process) == 0 &&
	       (process.state == NAME_STATE_STUB || process.state == NAME_STATE_FROZEN);
}

int other_host_refuse(struct call *call, int32_t vpid, int code)
{
	Pbeam__RemoteSignal none = PBEAM__REMOTE_SIGNAL__INIT;
	struct err err = ERR_INIT;
	int r = other_host_has_stub(call, vpid) ? 0 : send_signal(call, &none, vpid, &err);

	return r < 0 ? other_host_fail(call, vpid, r, &err) : call_answer(call, code);
}

/* ---- other calls ---- */

static int make_call(struct call *call, int32_t vpid)
{
	unsigned in = call->row->remote.in, out = call->row->remote.out;
	Pbeam__RemoteCall wish = PBEAM__REMOTE_CALL__INIT;
	Pbeam__Target target = PBEAM__TARGET__INIT;
	Pbeam__Done *done = NULL;
	uint8_t data[SYSCALL_REMOTE_BYTES];
	struct err err = ERR_INIT;
	int64_t args[6], value;
	int r;

	memcpy(args, call->args, sizeof(args));
	target.vpid = vpid;
	wish.target = &target;
	wish.number = (int32_t)call->nr;
	wish.n_args = 6;
	wish.args = args;
	if (in && call->args[in]) {
		wish.has_data = true;
		wish.data.data = data;
		wish.data.len = syscall_remote_in_bytes(call->row, call->args);
		if (call_read(call, call->args[in], data, wish.data.len) < 0)
			return call_answer(call, -EFAULT);
	}
	if (out && call->args[out])
		wish.room = (uint32_t)syscall_remote_out_bytes(call->row, call->args);
	r = other_host_request(PBEAM__DAEMON_REQUEST__DAEMON_CALL, &wish.base, &pbeam__done__descriptor,
			       &done, &err);
	if (r < 0)
		return other_host_fail(call, vpid, r, &err);
	value = done->value;
	if (wish.room && done->data.len <= wish.room && done->data.len > 0 &&
	    call_write(call, call->args[out], done->data.data, done->data.len) < 0)
		value = -EFAULT;
	message_free(done);
	return call_answer(call, value);
}

int other_host_call(struct call *call)
{
	int32_t vpid;

	if (!syscall_remote_possible(call->row, call->args))
		return SYSCALL_CONTINUE;
	vpid = (int32_t)call->args[syscall_remote_process(call->row)];
	return other_host_has(call, vpid) ? make_call(call, vpid) : SYSCALL_CONTINUE;
}
