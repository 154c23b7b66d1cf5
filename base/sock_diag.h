/* sock_diag(7): the kernel's sockets, asked for over netlink. */
#ifndef BASE_SOCK_DIAG_H
#define BASE_SOCK_DIAG_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

struct nlmsghdr;

/* Called for each socket of the reply: NLMSG_DATA(header) is the family's message, which its attributes
 * follow. 0 continues; any other value ends the query, which returns it. */
typedef int (*sock_diag_fn)(void *arg, const struct nlmsghdr *header);

/* Sends the request of `len` bytes (struct inet_diag_req_v2, unix_diag_req) and calls `fn` for each socket of
 * the reply. `flags` is NLM_F_DUMP for all sockets that match, 0 for the one that the request names. Returns
 * 0, what `fn` has returned, or -errno: -ENOENT if there is no socket with that name. */
must_check int sock_diag_query(const void *request, size_t len, uint16_t flags, sock_diag_fn fn, void *arg);

#endif
