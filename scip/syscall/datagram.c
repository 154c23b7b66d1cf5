/*
 * Datagrams of programs that have moved, or talk with such: to whom they go and who has sent them. Only the
 * moved filter traps these calls, and those of datagrams (SYSCALL_FILTER_HEARS), which those get that talk to
 * one that has moved directly: others send to the address of the birth, where a bridge passes it on.
 *
 * A sender that called a moved socket through its bridge is a socket of the bridge to the kernel, one for
 * each sender and socket (scip/migrate/bridge/port.c): what goes back to it is sent to that one. To a
 * connected socket that has moved its peer is a socket of the bridge, which goes by the peer's name.
 */
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "namespace/address_entry.h"
#include "scip/syscall/address.h"

/* A connection that was made anew: what the program calls its peer, and what the kernel does. */
static bool renamed_peer(const struct call *call, int socket, union name_sockaddr *name,
			 union name_sockaddr *real)
{
	struct name_socket kept;
	socklen_t len = sizeof(*real);

	memset(real, 0, sizeof(*real));
	if (names_socket_get(call->process->names, address_inode(socket), &kept) < 0 ||
	    !kept.peer.sa.sa_family || getpeername(socket, &real->sa, &len) < 0)
		return false;
	*name = kept.peer;
	return true;
}

static bool same(const union name_sockaddr *one, const union name_sockaddr *other)
{
	return one->sa.sa_family == other->sa.sa_family && !memcmp(one, other, address_size(one));
}

bool address_is_renamed_peer(const struct call *call, int socket, union name_sockaddr *to)
{
	union name_sockaddr name, real;

	if (!renamed_peer(call, socket, &name, &real) || !same(&name, to))
		return false;
	*to = real;
	return true;
}

bool address_lead_datagram(const struct call *call, int fd, union name_sockaddr *to)
{
	int family = to->sa.sa_family;
	struct name_address found;
	union name_sockaddr own = {0};
	socklen_t len = sizeof(own);
	auto_close int copy = -1;

	if (address_nothing_moved(call))
		return false;
	copy = address_socket(call, fd);
	if (copy < 0 || address_option(copy, SO_PROTOCOL) != IPPROTO_UDP)
		return false;
	if (address_is_renamed_peer(call, copy, to) || address_lead(call, IPPROTO_UDP, to))
		return true;
	if (getsockname(copy, &own.sa, &len) < 0 || !address_port(&own) ||
	    names_address_find_caller(call->process->names, &to->sa, address_port(&own), &found) < 0 ||
	    !address_in_family(&found.real, family))
		return false;
	*to = found.real;
	return true;
}

/* The name of who is called `real` by the kernel. */
static bool call_by_name(const struct call *call, union name_sockaddr *real)
{
	union name_sockaddr name, peer;
	auto_close int copy = -1;

	if (address_call(call, IPPROTO_UDP, real->sa.sa_family, real))
		return true;
	if (!names_socket_any(call->process->names))
		return false;
	copy = address_socket(call, (int)call->args[0]);
	/* what waited when it moved was put into its queue by another one than its peer */
	if (copy < 0 || !renamed_peer(call, copy, &name, &peer) || name.sa.sa_family != real->sa.sa_family)
		return false;
	*real = name;
	return true;
}

int address_call_sender(const struct call *call, uint64_t where, uint64_t len, uint64_t room)
{
	union name_sockaddr real;

	if (!address_read(call, where, len, &real) || room < address_size(&real) ||
	    !call_by_name(call, &real))
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
