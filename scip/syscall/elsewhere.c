/*
 * Calls about processes of other hosts. Whose number belongs to another host (names_place_find()) is not the
 * kernel's to look for: pbeamd passes the call on to where the process is, and the answer is the program's.
 * A process that has left a stub of itself here is asked where it is, not its stub.
 *
 * In a cluster a program is born behind a filter that traps such calls although its own names have not
 * diverged.
 */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "proto/ask.h"
#include "scip/syscall/table.h"

enum { PATIENCE_S = 5 };

static int ask(const Pbeam__RemoteSignal *wish, int64_t *value, struct err *err)
{
	const struct timeval patience = {PATIENCE_S, 0};
	auto_close int sock = ask_open("scip " PBEAM_VERSION, err);
	ProtobufCMessage *reply;
	int r = sock;

	if (sock >= 0 && setsockopt(sock, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience)) < 0)
		r = err_sys(err, "ask pbeamd");
	if (r >= 0)
		r = ask_message(sock, PBEAM__DAEMON_REQUEST__DAEMON_SIGNAL, &wish->base, NULL,
				&pbeam__done__descriptor, &reply, err);
	if (r < 0)
		return r;
	*value = ((const Pbeam__Done *)reply)->value;
	protobuf_c_message_free_unpacked(reply, NULL);
	return 0;
}

/* What the program gets for an answer that is none of the call's own: it is not ESRCH, which would say that
 * the process has ended. */
static int translate(int code)
{
	switch (code) {
	case -ESRCH:
	case -EPERM:
	case -EINVAL:
	case -EACCES:
	case -EAGAIN:
		return code;
	default:
		return -EHOSTUNREACH;
	}
}

static int pass_on(struct call *call, Pbeam__RemoteSignal *wish, int32_t vpid)
{
	Pbeam__Target target = PBEAM__TARGET__INIT;
	struct err err = ERR_INIT;
	int64_t value = 0;
	int r;

	target.vpid = vpid;
	wish->target = &target;
	wish->vpid = vpid;
	wish->from = call->process->vpid.n;
	r = ask(wish, &value, &err);
	if (r < 0 && r != -ESRCH)
		log_info("vpid %d: %s of vpid %d: %s", call->process->vpid.n, call->row->name, vpid,
			 err.text);
	return call_answer(call, r < 0 ? translate(r) : value);
}

/* A group whose leader has left may have members here: those are the kernel's to find, and what its leader
 * left behind passes the signal on. */
static bool has_members_here(const struct call *call, int32_t group)
{
	int32_t real = call_real(call, group);

	return real > 1 && real != NAMES_NOBODY &&
	       names_virtual(call->process->names, (struct rpid){real}).n == group && kill(-real, 0) == 0;
}

bool elsewhere(const struct call *call, int32_t number)
{
	char host[NAME_TEXT_MAX];

	if (number == call->process->vpid.n ||
	    names_place_find(call->process->names, (struct vpid){number}, host) < 0)
		return false;
	return number > 0 || !has_members_here(call, -number);
}

int elsewhere_signal(struct call *call, int32_t number, int32_t vtid, int signal, uint64_t info)
{
	Pbeam__RemoteSignal wish = PBEAM__REMOTE_SIGNAL__INIT;
	uint8_t bytes[SIGINFO_BYTES];

	if (info) {
		if (call_read(call, info, bytes, sizeof(bytes)) < 0)
			return call_answer(call, -EFAULT);
		wish.siginfo.data = bytes;
		wish.siginfo.len = sizeof(bytes);
	}
	wish.what = PBEAM__REMOTE_SIGNAL__WHAT__SIGNAL;
	wish.signal = signal;
	wish.group = number < 0;
	wish.vtid = vtid;
	return pass_on(call, &wish, number < 0 ? -number : number);
}

int elsewhere_ask(struct call *call, int32_t number, int what)
{
	Pbeam__RemoteSignal wish = PBEAM__REMOTE_SIGNAL__INIT;

	wish.what = (Pbeam__RemoteSignal__What)what;
	return pass_on(call, &wish, number);
}

int elsewhere_set_priority(struct call *call, int32_t number, int nice)
{
	Pbeam__RemoteSignal wish = PBEAM__REMOTE_SIGNAL__INIT;

	wish.what = PBEAM__REMOTE_SIGNAL__WHAT__SETPRIORITY;
	wish.nice = nice;
	return pass_on(call, &wish, number);
}

/* Of other hosts' threads only the first ones, which have the process's number, are known here. */
int enter_tkill(struct call *call)
{
	int32_t thread = (int32_t)call->args[0];

	if (thread > 0 && elsewhere(call, thread))
		return elsewhere_signal(call, thread, thread, (int)call->args[1], 0);
	return call_enter_regular(call);
}

int enter_tgkill(struct call *call)
{
	int32_t group = (int32_t)call->args[0];

	if (group > 0 && elsewhere(call, group))
		return elsewhere_signal(call, group, (int32_t)call->args[1], (int)call->args[2], 0);
	return call_enter_regular(call);
}
