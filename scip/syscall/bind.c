/*
 * bind() of a program that is not on the host of its birth.
 *
 * The program binds an address of that host, and the address means the same to all its callers. The
 * kernel assigns a free port on an address of this host, and the registry maps one to the other. If the
 * central host cannot be reached, the bind fails.
 *
 * A program on the host of its birth binds as usual, unless a program that has left holds the name.
 * Port 0, and addresses that only this host has, belong to the current host: the socket is born here.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "namespace/address_entry.h"
#include "scip/syscall/address.h"

enum { MOMENT_US = 5000 };

static bool is_local(const union name_sockaddr *address)
{
	auto_close int probe = socket(address->sa.sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	union name_sockaddr any_port = *address;

	address_set_port(&any_port, 0);
	return probe >= 0 && bind(probe, &any_port.sa, address_size(address)) == 0;
}

static bool is_v6_only(int fd)
{
	int only = 0;
	socklen_t len = sizeof(only);

	return getsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &only, &len) == 0 && only;
}

static struct name_address bind_describe(const struct call *call, int protocol,
					 const union name_sockaddr *name, const char *born)
{
	struct name_address address = {.protocol = protocol, .name = *name, .vpid = call->process->vpid};

	snprintf(address.born, sizeof(address.born), "%s", born);
	(void)names_cluster(call->process->names, address.host);
	return address;
}

/* At home: a name of a program that has left is in use. */
static int bind_at_home(struct call *call, int protocol, const union name_sockaddr *name)
{
	struct name_address found;

	if (!address_port(name) ||
	    names_address_find(call->process->names, protocol, &name->sa, NULL, &found) < 0 || found.caller)
		return SYSCALL_CONTINUE;
	if (found.vpid.n != call->process->vpid.n)
		return call_answer(call, -EADDRINUSE);
	/* it has come home and binds again */
	memcpy(call->keep, name, sizeof(*name));
	return SYSCALL_WANT_EXIT;
}

/* The address that the kernel has bound. */
static bool bind_place(union name_sockaddr *at)
{
	int family = at->sa.sa_family;
	union name_sockaddr own;

	if (address_is_wildcard(at) || address_is_loopback(at)) {
		address_set_port(at, 0);
		return true;
	}
	if (!address_own(&own) || !address_in_family(&own, family))
		return false;
	*at = own;
	return true;
}

static int bind_away(struct call *call, int protocol, const union name_sockaddr *name, const char *born)
{
	bool host_of_birth = address_is_wildcard(name) || address_is_loopback(name);
	struct name_address address = bind_describe(call, protocol, name, born);
	union name_sockaddr at = *name;
	struct err err = ERR_INIT;
	uint64_t version = 0;
	int r;

	if ((host_of_birth && !address_port(name)) || (!host_of_birth && is_local(name)))
		return SYSCALL_CONTINUE;
	r = address_port(name) ? address_free(call->process->names, &address, &version, &err) : 0;
	if (r < 0) {
		log_info("vpid %d: bind: %s", call->process->vpid.n, err.text);
		return call_answer(call, r == -EADDRINUSE ? -EADDRINUSE : -EADDRNOTAVAIL);
	}
	if (!bind_place(&at))
		return SYSCALL_CONTINUE;
	r = call_replace(call, 1, &at, address_size(&at));
	/* a socket that has no port yet keeps the kernel's name */
	if (r == SYSCALL_WANT_EXIT && !call->mapping && address_port(name)) {
		memcpy(call->keep, name, sizeof(*name));
		call->version = version;
	}
	return r;
}

int enter_bind(struct call *call)
{
	char born[NAME_TEXT_MAX], own[NAME_TEXT_MAX];
	struct names *names = call->process->names;
	union name_sockaddr name;
	auto_close int fd = -1;
	bool away;
	int protocol;

	if (!names_cluster(names, own) || !address_birth(call, born))
		return SYSCALL_CONTINUE;
	away = strcmp(born, own) != 0;
	if ((!away && !names_address_any(names)) || !address_read(call, call->args[1], call->args[2], &name))
		return SYSCALL_CONTINUE;
	fd = address_socket(call, (int)call->args[0]);
	protocol = fd < 0 ? -1 : address_option(fd, SO_PROTOCOL);
	if (protocol != IPPROTO_TCP && protocol != IPPROTO_UDP)
		return SYSCALL_CONTINUE;
	return away ? bind_away(call, protocol, &name, born) : bind_at_home(call, protocol, &name);
}

static int register_it(const struct call *call, int fd, struct address_entry *entry, struct err *err)
{
	struct name_socket socket = {.own = entry->address.name};
	int r;

	/* first the names of the socket, then the callers */
	if (!address_reached(fd, &entry->address.real))
		return err_set(err, -EADDRNOTAVAIL, "no other host could reach it");
	r = address_register(entry, is_v6_only(fd), call->version, err);
	if (r < 0)
		return r;
	socket.peer = entry->n ? entry->aliases[0] : entry->address.name;
	memcpy(socket.born, entry->address.born, sizeof(socket.born));
	return names_socket_set(call->process->names, address_inode(fd), &socket);
}

int exit_bind(struct call *call)
{
	union name_sockaddr name;
	auto_close int fd = -1;
	auto_free struct address_entry *entry = NULL;
	char born[NAME_TEXT_MAX], own[NAME_TEXT_MAX];
	struct err err = ERR_INIT;
	int r;

	memcpy(&name, call->keep, sizeof(name));
	if (!name.sa.sa_family || !address_birth(call, born) || !names_cluster(call->process->names, own))
		return 0;
	if (call->rval == -EADDRINUSE && !strcmp(born, own)) {
		/* The relay that replaced it while it was away (scip/bridge/bridge.h) releases the
		 * port shortly; the entry is removed then too, so the wait ends. */
		usleep(MOMENT_US);
		return CALL_AGAIN;
	}
	if (call->rval != 0)
		return 0;
	fd = address_socket(call, (int)call->args[0]);
	entry = calloc(1, sizeof(*entry));
	if (fd < 0 || !entry)
		return 0;
	entry->address = bind_describe(call, address_option(fd, SO_PROTOCOL), &name, born);
	r = strcmp(born, own) != 0 ? register_it(call, fd, entry, &err)
				   : address_forget(&entry->address, &err);
	if (r == 0)
		return 0;
	log_info("vpid %d: bind: %s", call->process->vpid.n, err.text);
	return call_set_rval(call, r == -EEXIST ? -EADDRINUSE : -EADDRNOTAVAIL);
}
