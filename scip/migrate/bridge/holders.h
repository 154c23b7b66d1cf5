/* Who else on this host holds a pipe or a socket: processes that do not move. */
#ifndef SCIP_MIGRATE_BRIDGE_HOLDERS_H
#define SCIP_MIGRATE_BRIDGE_HOLDERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/err.h"

struct holder {
	uint64_t ino;
	pid_t pid;
	bool pipe, reads, writes;
};
struct holders {
	struct holder *v;
	size_t n;
};

/* Every pipe and socket of the user's processes but those of `skip` and our own programs'. */
must_check int holders_read(struct holders *out, const pid_t *skip, size_t nskip, struct err *err);
/* Of one process. */
must_check int holders_add(struct holders *out, pid_t pid);
/* Somebody who reads (or writes) it; NULL if nobody does. */
const struct holder *holders_find(const struct holders *holders, uint64_t ino, bool reads, bool writes);
/* Somebody who has the socket and not its other end `peer` (0: unknown) as well; NULL if nobody does. */
const struct holder *holders_find_one_sided(const struct holders *holders, uint64_t ino, uint64_t peer);
void holders_free(struct holders *holders);

#endif
