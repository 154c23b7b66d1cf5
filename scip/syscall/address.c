/*
 * Names of transport addresses.
 *
 * A bound address that has moved (namespace/names_address.c) is reached at its new place by every
 * caller: connect() is redirected to the real address and getpeername() returns the name. accept()
 * returns the caller's name, and the accepted socket has the listener's name. Sockets whose connection
 * was made again keep the names that they had (namespace/names_socket.c).
 *
 * As long as no address has moved, each of these calls continues at its first stop.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "base/cleanup.h"
#include "namespace/address_entry.h"
#include "scip/syscall/address.h"

bool address_nothing_moved(const struct call *call)
{
	return !names_socket_any(call->process->names) && !names_address_any(call->process->names);
}

int address_socket(const struct call *call, int fd)
{
	auto_close int pidfd = pidfd_open(call->process->pid, 0);
	struct stat st;
	int own = pidfd < 0 ? -1 : pidfd_getfd(pidfd, fd, 0);

	if (own >= 0 && (fstat(own, &st) < 0 || !S_ISSOCK(st.st_mode)))
		close(steal_fd(&own));
	return own;
}

int address_option(int fd, int name)
{
	int value = -1;
	socklen_t len = sizeof(value);

	return getsockopt(fd, SOL_SOCKET, name, &value, &len) == 0 ? value : -1;
}

uint64_t address_inode(int fd)
{
	struct stat st;

	return fstat(fd, &st) == 0 ? st.st_ino : 0;
}

bool address_read(const struct call *call, uint64_t where, uint64_t len, union name_sockaddr *out)
{
	size_t size = len < sizeof(*out) ? (size_t)len : sizeof(*out);

	memset(out, 0, sizeof(*out));
	return where && size >= sizeof(out->in) && call_read(call, where, out, size) == 0 &&
	       (out->sa.sa_family == AF_INET || (out->sa.sa_family == AF_INET6 && size >= sizeof(out->in6)));
}

const char *address_birth(const struct call *call, char host[NAME_TEXT_MAX])
{
	return names_block_find(call->process->names, call->process->vpid, host) == 0 ? host : NULL;
}

bool address_lead(const struct call *call, int protocol, union name_sockaddr *to)
{
	char born[NAME_TEXT_MAX], own[NAME_TEXT_MAX] = "";
	struct name_address found;
	int family = to->sa.sa_family;

	if (names_address_find(call->process->names, protocol, &to->sa, address_birth(call, born), &found) <
	    0)
		return false;
	(void)names_cluster(call->process->names, own);
	/* on the loopback of another host: the relay that it has left there forwards */
	if (address_is_loopback(&found.real) && strcmp(found.host, own) != 0)
		return false;
	if (!address_in_family(&found.real, family))
		return false;
	*to = found.real;
	return true;
}

bool address_call(const struct call *call, int protocol, int family, union name_sockaddr *real)
{
	struct name_address found;

	if (names_address_find_real(call->process->names, protocol, &real->sa, &found) < 0 ||
	    !address_in_family(&found.name, family))
		return false;
	*real = found.name;
	return true;
}

int address_answer(const struct call *call, uint64_t where, uint64_t len_at, uint64_t room,
		   const union name_sockaddr *name)
{
	uint32_t len = address_size(name), written;

	if (name->sa.sa_family != AF_INET && name->sa.sa_family != AF_INET6)
		return 0;
	written = len < room ? len : (uint32_t)room;
	if ((written && call_write(call, where, name, written) == -ESRCH) ||
	    call_write(call, len_at, &len, sizeof(len)) == -ESRCH)
		return -ESRCH;
	return 0;
}

/* ---- getsockname, getpeername ---- */

/* The kernel overwrites the length that the program has given; keep[0] saves it. */
int enter_socket_name(struct call *call)
{
	int32_t len;

	if (address_nothing_moved(call) || call_read(call, call->args[2], &len, sizeof(len)) < 0 || len < 0)
		return SYSCALL_CONTINUE;
	call->keep[0] = (uint64_t)len;
	return SYSCALL_WANT_EXIT;
}

/* For a connection that was accepted without a trap, or that a relay has just made here. */
static int answer_by_address(const struct call *call)
{
	union name_sockaddr real;

	if (!address_read(call, call->args[1], call->keep[0], &real) ||
	    !address_call(call, IPPROTO_TCP, real.sa.sa_family, &real))
		return 0;
	return address_answer(call, call->args[1], call->args[2], call->keep[0], &real);
}

static int exit_socket_name(struct call *call, bool own)
{
	const union name_sockaddr *side;
	struct name_socket name;
	struct stat st;
	char path[64];

	snprintf(path, sizeof(path), "/proc/%d/fd/%d", call->tracee->tid, (int)call->args[0]);
	if (call->rval != 0 || stat(path, &st) < 0 || !S_ISSOCK(st.st_mode))
		return 0;
	side = own ? &name.own : &name.peer;
	if (names_socket_get(call->process->names, st.st_ino, &name) < 0 || !side->sa.sa_family)
		return answer_by_address(call);
	return address_answer(call, call->args[1], call->args[2], call->keep[0], side);
}

int exit_getsockname(struct call *call)
{
	return exit_socket_name(call, true);
}

int exit_getpeername(struct call *call)
{
	return exit_socket_name(call, false);
}

/* ---- connect ---- */

_Static_assert(sizeof(union name_sockaddr) <= sizeof(((struct call *)0)->keep), "an address can be kept");

/* A datagram socket can be connected again; the name of its old peer is then wrong. */
static bool has_named_peer(const struct call *call, int fd)
{
	struct name_socket name;

	return names_socket_get(call->process->names, address_inode(fd), &name) == 0 &&
	       name.peer.sa.sa_family;
}

int enter_connect(struct call *call)
{
	union name_sockaddr name, real;
	auto_close int fd = -1;
	int protocol, r = SYSCALL_WANT_EXIT;
	bool led;

	if (address_nothing_moved(call) || !address_read(call, call->args[1], call->args[2], &name))
		return SYSCALL_CONTINUE;
	fd = address_socket(call, (int)call->args[0]);
	real = name;
	protocol = fd < 0 ? -1 : address_option(fd, SO_PROTOCOL);
	/* connected to the same peer again: it stays connected through its relay */
	if (protocol == IPPROTO_UDP && address_is_renamed_peer(call, fd, &real))
		return call_answer(call, 0);
	led = fd >= 0 && address_lead(call, protocol, &real);
	if (!led && !(protocol == IPPROTO_UDP && has_named_peer(call, fd)))
		return SYSCALL_CONTINUE;
	if (led)
		r = call_replace(call, 1, &real, address_size(&real));
	if (r == SYSCALL_WANT_EXIT && !call->mapping)
		memcpy(call->keep, &name, sizeof(name));
	return r;
}

/* Connected or connecting; a socket in another state has no peer to name. */
static bool may_be_connected(int64_t rval)
{
	return rval == 0 || rval == -EINPROGRESS || rval == -EINTR || rval <= -512 /* ERESTARTSYS .. */;
}

int exit_connect(struct call *call)
{
	struct names *names = call->process->names;
	struct name_socket name = {0};
	union name_sockaddr peer;
	struct stat st;
	char path[64];

	memcpy(&peer, call->keep, sizeof(peer));
	snprintf(path, sizeof(path), "/proc/%d/fd/%d", call->tracee->tid, (int)call->args[0]);
	if (!peer.sa.sa_family || !may_be_connected(call->rval) || stat(path, &st) < 0)
		return 0;
	if (names_socket_get(names, st.st_ino, &name) < 0)
		memset(&name, 0, sizeof(name));
	name.peer = peer;
	if (names_socket_set(names, st.st_ino, &name) < 0)
		return 0; /* the name table is full or damaged; the connection works */
	return 0;
}

/* ---- accept ---- */

int enter_accept(struct call *call)
{
	struct stat st;
	char path[64];
	int32_t len = 0;

	if (address_nothing_moved(call))
		return SYSCALL_CONTINUE;
	if (call->args[1] && (call_read(call, call->args[2], &len, sizeof(len)) < 0 || len < 0))
		return SYSCALL_CONTINUE;
	snprintf(path, sizeof(path), "/proc/%d/fd/%d", call->tracee->tid, (int)call->args[0]);
	call->keep[0] = (uint64_t)len;
	call->keep[1] = stat(path, &st) == 0 && S_ISSOCK(st.st_mode) ? st.st_ino : 0;
	return SYSCALL_WANT_EXIT;
}

/* Gives an accepted socket the name of its listener. */
static bool own_name(const struct call *call, int family, union name_sockaddr *own)
{
	struct name_socket listener;

	if (names_socket_get(call->process->names, call->keep[1], &listener) < 0 ||
	    !listener.peer.sa.sa_family)
		return address_call(call, IPPROTO_TCP, family, own);
	*own = listener.peer;
	return address_in_family(own, family);
}

int exit_accept(struct call *call)
{
	auto_close int fd = call->rval >= 0 ? address_socket(call, (int)call->rval) : -1;
	struct name_socket name = {0};
	socklen_t own = sizeof(name.own), peer = sizeof(name.peer);
	bool own_known, peer_known;
	int family;

	if (fd < 0 || address_option(fd, SO_PROTOCOL) != IPPROTO_TCP ||
	    getsockname(fd, &name.own.sa, &own) < 0 || getpeername(fd, &name.peer.sa, &peer) < 0)
		return 0;
	family = name.own.sa.sa_family;
	own_known = own_name(call, family, &name.own);
	peer_known = address_call(call, IPPROTO_TCP, family, &name.peer);
	if (!own_known)
		memset(&name.own, 0, sizeof(name.own));
	if (!peer_known)
		memset(&name.peer, 0, sizeof(name.peer));
	if ((own_known || peer_known) && names_socket_set(call->process->names, address_inode(fd), &name) < 0)
		return 0;
	if (!peer_known || !call->args[1])
		return 0;
	return address_answer(call, call->args[1], call->args[2], call->keep[0], &name.peer);
}
