/* Finds the other holders of a pipe, socket or terminal on this host: processes that do not move. */
#ifndef SCIP_BRIDGE_HOLDERS_H
#define SCIP_BRIDGE_HOLDERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/err.h"

struct holder {
	uint64_t ino; /* bridge_terminal_ino() for a terminal's slave or master */
	pid_t pid;
	int fd;
	bool pipe, socket, slave, master, reads, writes;
};
struct holders {
	struct holder *v;
	size_t n;
};

/* Lists every pipe, socket and pseudo-terminal of the user's processes, except `skip` and ΦBEAM's own
 * processes. */
must_check int holders_read(struct holders *out, const pid_t *skip, size_t nskip, struct err *err);
/* Lists the bridges' holders only. */
must_check int holders_read_bridges(struct holders *out, struct err *err);
/* Adds the holders of one process. */
must_check int holders_add(struct holders *out, pid_t pid);
/* Returns a holder that has it open for reading (or writing), or NULL. */
const struct holder *holders_find(const struct holders *holders, uint64_t ino, bool reads, bool writes);
/* Returns a holder of the socket that does not also hold its other end `peer` (0: unknown), or NULL. */
const struct holder *holders_find_one_sided(const struct holders *holders, uint64_t ino, uint64_t peer);
/* Returns a duplicate of the pseudo-terminal's master, or -errno: its holder may belong to another user. */
must_check int holders_get_master(const struct holders *holders, uint64_t ino);
/* Returns a holder of the slave that does not also hold the master, or NULL. A holder of both has only not
 * closed the slave that it opened for its child. */
const struct holder *holders_find_slave(const struct holders *holders, uint64_t ino);
void holders_free(struct holders *holders);

#endif
