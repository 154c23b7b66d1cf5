/*
 * Datagrams of programs that have moved, or talk with such: to whom they go and who has sent them. Only the
 * moved filter traps these calls: others send to the address of the birth, where a bridge passes it on.
 *
 * A sender that called a moved socket through its bridge is a socket of the bridge to the kernel, one for
 * each sender and socket (scip/migrate/bridge/port.c): what goes back to it is sent to that one.
 */
#include <errno.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "namespace/address_entry.h"
#include "scip/syscall/address.h"

bool address_lead_datagram(const struct call *call, int fd, union name_sockaddr *to)
{
	int family = to->sa.sa_family;
	struct name_address found;
	union name_sockaddr own = {0};
	socklen_t len = sizeof(own);
	auto_close int copy = -1;

	if (!names_address_any(call->process->names))
		return false;
	copy = address_socket(call, fd);
	if (copy < 0 || address_option(copy, SO_PROTOCOL) != IPPROTO_UDP)
		return false;
	if (address_lead(call, IPPROTO_UDP, to))
		return true;
	if (getsockname(copy, &own.sa, &len) < 0 || !address_port(&own) ||
	    names_address_find_caller(call->process->names, &to->sa, address_port(&own), &found) < 0 ||
	    !address_in_family(&found.real, family))
		return false;
	*to = found.real;
	return true;
}

int address_call_sender(const struct call *call, uint64_t where, uint64_t len, uint64_t room)
{
	union name_sockaddr real;

	if (!address_read(call, where, len, &real) || room < address_size(&real) ||
	    !address_call(call, IPPROTO_UDP, real.sa.sa_family, &real))
		return 0;
	return call_write(call, where, &real, address_size(&real)) == -ESRCH ? -ESRCH : 0;
}

int enter_sendto(struct call *call)
{
	union name_sockaddr to;

	if (!address_read(call, call->args[4], call->args[5], &to) ||
	    !address_lead_datagram(call, (int)call->args[0], &to))
		return SYSCALL_CONTINUE;
	return call_replace(call, 4, &to, address_size(&to));
}

int enter_recvfrom(struct call *call)
{
	int32_t len;

	/* a call may wait for longer than this answer is good: what has moved here has a name in any case */
	if (!call->args[4] || address_nothing_moved(call) ||
	    call_read(call, call->args[5], &len, sizeof(len)) < 0 || len < 0)
		return SYSCALL_CONTINUE;
	call->keep[0] = (uint64_t)len;
	return SYSCALL_WANT_EXIT;
}

int exit_recvfrom(struct call *call)
{
	uint32_t len;

	if (call->rval < 0 || call_read(call, call->args[5], &len, sizeof(len)) < 0)
		return 0;
	return address_call_sender(call, call->args[4], len, call->keep[0]);
}
