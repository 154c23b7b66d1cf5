/* What sock_diag reports about UNIX sockets (unprivileged): peers, shut directions, backlogs, waiting
 * connections.
 */
#ifndef SCIP_OBJECT_UNIX_DIAG_H
#define SCIP_OBJECT_UNIX_DIAG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

struct unix_diag {
	uint32_t ino, peer; /* peer 0: none, gone, or not accepted yet */
	uint32_t backlog;   /* of a listening one */
	uint32_t vfs_ino;   /* of the file it is bound to, 0 for none */
	uint8_t state, shutdown;
	bool has_peer;
	uint32_t *icons; /* inodes of clients that wait to be accepted; 0: gone again */
	size_t nicons;
};
struct unix_diag_table {
	struct unix_diag *v; /* ordered by ino */
	size_t n;
};

must_check int unix_diag_read(struct unix_diag_table *out, struct err *err);
const struct unix_diag *unix_diag_find(const struct unix_diag_table *table, uint64_t ino);
void unix_diag_free(struct unix_diag_table *table);

#endif
