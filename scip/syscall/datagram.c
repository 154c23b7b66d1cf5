/*
 * Destinations and senders of datagrams.
 *
 * The moved filter traps these calls. So do the receive and send filters, which a program gets that
 * exchanges datagrams directly with one that has moved; others send to the address of its birth, where
 * a relay forwards them.
 *
 * The kernel sees a sender that called a moved socket through its relay as a socket of the relay, one
 * for each sender and socket (scip/bridge/bridge_port.c). Answers go to that socket. For a connected
 * socket that has moved, the peer is a socket of the relay with the peer's name.
 */
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "namespace/address_entry.h"
#include "scip/syscall/address.h"

enum { SENT_MAX = 65507 /* the largest payload over IPv4 */, RECEIVED_MAX = 65536 };

/* The peer of a connection that was made again: its name, and its address in the kernel. */
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

static bool same_sockaddr(const union name_sockaddr *one, const union name_sockaddr *other)
{
	return one->sa.sa_family == other->sa.sa_family && !memcmp(one, other, address_size(one));
}

bool address_is_renamed_peer(const struct call *call, int socket, union name_sockaddr *to)
{
	union name_sockaddr name, real;

	if (!renamed_peer(call, socket, &name, &real) || !same_sockaddr(&name, to))
		return false;
	*to = real;
	return true;
}

/* `copy`: a duplicate of the program's socket, or -1. */
static bool datagram_lead(const struct call *call, int copy, union name_sockaddr *to)
{
	int family = to->sa.sa_family;
	struct name_address found;
	union name_sockaddr own = {0};
	socklen_t len = sizeof(own);

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

bool address_lead_datagram(const struct call *call, int fd, union name_sockaddr *to)
{
	auto_close int copy = address_nothing_moved(call) ? -1 : address_socket(call, fd);

	return datagram_lead(call, copy, to);
}

/* Finds the name of the address `real`. `socket`: a duplicate of the program's socket, or -1. */
static bool call_by_name(const struct call *call, int socket, union name_sockaddr *real)
{
	union name_sockaddr name, peer;
	auto_close int copy = -1;

	if (address_call(call, IPPROTO_UDP, real->sa.sa_family, real))
		return true;
	if (!names_socket_any(call->process->names))
		return false;
	if (socket < 0)
		socket = copy = address_socket(call, (int)call->args[0]);
	/* datagrams that were queued at the move have been put back by another socket than the peer */
	if (socket < 0 || !renamed_peer(call, socket, &name, &peer) ||
	    name.sa.sa_family != real->sa.sa_family)
		return false;
	*real = name;
	return true;
}

int address_call_sender(const struct call *call, uint64_t where, uint64_t len, uint64_t room)
{
	union name_sockaddr real;

	if (!address_read(call, where, len, &real) || room < address_size(&real) ||
	    !call_by_name(call, -1, &real))
		return 0;
	return call_write(call, where, &real, address_size(&real)) == -ESRCH ? -ESRCH : 0;
}

/* Answering here takes one stop instead of two. */

/* Sends on the program's behalf. False if the kernel should report an error, or the call would block. */
static bool send_for(const struct call *call, int copy, const union name_sockaddr *to, int64_t *sent)
{
	char data[SENT_MAX];
	size_t len = call->args[2];
	int flags = (int)call->args[3];

	if (len > sizeof(data) || flags & ~(MSG_DONTWAIT | MSG_NOSIGNAL | MSG_CONFIRM) ||
	    (len && call_read(call, call->args[1], data, len) < 0))
		return false;
	*sent = sendto(copy, data, len, flags | MSG_DONTWAIT | MSG_NOSIGNAL, &to->sa, address_size(to));
	if (*sent < 0)
		*sent = -errno;
	return *sent != -EAGAIN;
}

int enter_sendto(struct call *call)
{
	auto_close int copy = -1;
	union name_sockaddr to;
	int64_t sent;

	if (address_nothing_moved(call) || !address_read(call, call->args[4], call->args[5], &to))
		return SYSCALL_CONTINUE;
	copy = address_socket(call, (int)call->args[0]);
	if (!datagram_lead(call, copy, &to))
		return SYSCALL_CONTINUE;
	if (send_for(call, copy, &to, &sent))
		return call_answer(call, sent);
	return call_replace(call, 4, &to, address_size(&to));
}

/* Likewise receives a datagram that is queued. */
static bool receive_for(struct call *call, uint64_t room, int64_t *received)
{
	auto_close int copy = address_socket(call, (int)call->args[0]);
	union name_sockaddr from = {0};
	socklen_t len = sizeof(from);
	char data[RECEIVED_MAX];
	size_t most = call->args[2] < sizeof(data) ? (size_t)call->args[2] : sizeof(data);
	int flags = (int)call->args[3];

	if (copy < 0 || flags & ~(MSG_DONTWAIT | MSG_PEEK | MSG_TRUNC) ||
	    address_option(copy, SO_PROTOCOL) != IPPROTO_UDP)
		return false;
	*received = recvfrom(copy, data, most, flags | MSG_DONTWAIT, &from.sa, &len);
	if (*received < 0) {
		*received = -errno;
		return *received != -EAGAIN;
	}
	if ((size_t)*received < most)
		most = (size_t)*received;
	(void)call_by_name(call, copy, &from);
	if ((most && call_write(call, call->args[1], data, most) < 0) ||
	    address_answer(call, call->args[4], call->args[5], room, &from) < 0)
		*received = -EFAULT;
	return true;
}

int enter_recvfrom(struct call *call)
{
	int64_t received;
	int32_t len;

	/* the call may block until the name is outdated; a socket that has moved to this host always has
	 * one */
	if (!call->args[4] || address_nothing_moved(call) ||
	    call_read(call, call->args[5], &len, sizeof(len)) < 0 || len < 0)
		return SYSCALL_CONTINUE;
	if (receive_for(call, (uint64_t)len, &received))
		return call_answer(call, received);
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
