/* What the calls that carry transport addresses have in common. Private to scip/syscall/. */
#ifndef SCIP_SYSCALL_ADDRESS_H
#define SCIP_SYSCALL_ADDRESS_H

#include "scip/syscall/call.h"

/* The cheap test: no address of this host's table is elsewhere, no socket has another name. */
bool address_nothing_moved(const struct call *call);
/* A duplicate of the program's socket, the caller's; -1: it is none. */
int address_socket(const struct call *call, int fd);
/* An integer option of SOL_SOCKET, -1 when it cannot be read. */
int address_option(int fd, int name);
uint64_t address_inode(int fd);
/* An internet address of the program's; false: it is none. */
bool address_read(const struct call *call, uint64_t where, uint64_t len, union name_sockaddr *out);
/* The host on which the program was born, NULL without a cluster. */
const char *address_birth(const struct call *call, char host[NAME_TEXT_MAX]);
/* A name in place of which another address is to be called becomes that one; false: it is right as it is. */
bool address_lead(const struct call *call, int protocol, union name_sockaddr *to);
/* A real address becomes the name that it goes by, as a socket of `family` has it; false: it has none. */
bool address_call(const struct call *call, int protocol, int family, union name_sockaddr *real);
/* Puts an address where the program wants it, its length at `len_at`, in room for `room` bytes. 0 or -ESRCH.
 */
must_check int address_answer(const struct call *call, uint64_t where, uint64_t len_at, uint64_t room,
			      const union name_sockaddr *name);
/* Where a datagram goes that is sent to `to` by the socket `fd`; false: it is right as it is. */
bool address_lead_datagram(const struct call *call, int fd, union name_sockaddr *to);
/* `to` is what a connected socket (a duplicate) calls its peer, and becomes what the kernel does; else false.
 */
bool address_is_renamed_peer(const struct call *call, int socket, union name_sockaddr *to);
/* As the sender of a datagram that came to the socket args[0] is called, which the kernel has put at `where`
 * (`len` bytes of it, room for `room`).
 */
must_check int address_call_sender(const struct call *call, uint64_t where, uint64_t len, uint64_t room);

#endif
