/* Who else on this host holds a pipe, a socket or a terminal: processes that do not move. */
#ifndef SCIP_BRIDGE_HOLDERS_H
#define SCIP_BRIDGE_HOLDERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/err.h"

struct holder {
	uint64_t ino; /* of a terminal's slave or master bridge_terminal_ino() */
	pid_t pid;
	int fd;
	bool pipe, socket, slave, master, reads, writes;
};
struct holders {
	struct holder *v;
	size_t n;
};

/* Every pipe, socket and pseudo-terminal of the user's processes but those of `skip` and our own programs'.
 */
must_check int holders_read(struct holders *out, const pid_t *skip, size_t nskip, struct err *err);
/* Of the bridges alone. */
must_check int holders_read_bridges(struct holders *out, struct err *err);
/* Of one process. */
must_check int holders_add(struct holders *out, pid_t pid);
/* Somebody who reads (or writes) it; NULL if nobody does. */
const struct holder *holders_find(const struct holders *holders, uint64_t ino, bool reads, bool writes);
/* Somebody who has the socket and not its other end `peer` (0: unknown) as well; NULL if nobody does. */
const struct holder *holders_find_one_sided(const struct holders *holders, uint64_t ino, uint64_t peer);
/* Somebody who has the master of this pseudo-terminal. */
const struct holder *holders_find_master(const struct holders *holders, uint64_t ino);
/* A descriptor of that, or -errno: whoever has it may be another user's. */
must_check int holders_get_master(const struct holders *holders, uint64_t ino);
/* Somebody who has its slave and not its master: who has that only has not closed what was for its child. */
const struct holder *holders_find_slave(const struct holders *holders, uint64_t ino);
void holders_free(struct holders *holders);

#endif
