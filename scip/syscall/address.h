/* Helpers for calls that pass transport addresses. Private to scip/syscall/. */
#ifndef SCIP_SYSCALL_ADDRESS_H
#define SCIP_SYSCALL_ADDRESS_H

#include "scip/syscall/call.h"

/* True if no address of this host has moved and no socket has another name. Costs one load. */
bool address_nothing_moved(const struct call *call);
/* Returns a duplicate of the program's socket, owned by the caller, or -1 if the descriptor is no socket. */
int address_socket(const struct call *call, int fd);
/* Returns an integer option of SOL_SOCKET, or -1 if it cannot be read. */
int address_option(int fd, int name);
uint64_t address_inode(int fd);
/* Reads an internet address from the program. False if it is of another family or unreadable. */
bool address_read(const struct call *call, uint64_t where, uint64_t len, union name_sockaddr *out);
/* The host on which the program was born, or NULL without a cluster. */
const char *address_birth(const struct call *call, char host[NAME_TEXT_MAX]);
/* Replaces a name by the address to connect to. False if the name is that address. */
bool address_lead(const struct call *call, int protocol, union name_sockaddr *to);
/* Replaces a real address by its name, for a socket of `family`. False if it has no name. */
bool address_call(const struct call *call, int protocol, int family, union name_sockaddr *real);
/* Writes an address to the program's buffer of `room` bytes, and its length to `len_at`. 0 or -ESRCH. */
must_check int address_answer(const struct call *call, uint64_t where, uint64_t len_at, uint64_t room,
			      const union name_sockaddr *name);
/* Replaces the destination of a datagram sent by the socket `fd`. False if `to` is right already. */
bool address_lead_datagram(const struct call *call, int fd, union name_sockaddr *to);
/* Replaces the name of a connected socket's peer by the address that the kernel has. False if they are
 * equal. `fd` is a duplicate. */
bool address_is_renamed_peer(const struct call *call, int socket, union name_sockaddr *to);
/* Replaces the sender's address of a datagram received by the socket args[0]. The kernel has written `len`
 * bytes of it to `where`, which has room for `room`. */
must_check int address_call_sender(const struct call *call, uint64_t where, uint64_t len, uint64_t room);

#endif
