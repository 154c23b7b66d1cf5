/* Finds the processes that hold given sockets, and keeps them frozen. */
#ifndef SCIP_RECONNECT_HOLD_H
#define SCIP_RECONNECT_HOLD_H

#include "scip/capture/group.h"
#include "scip/ends/end_tcp.h"

/* One descriptor of one process that refers to a wanted socket. */
struct reconnect_alias {
	struct rpid rpid;
	int fd;
	uint64_t ino;
};

struct reconnect_hold {
	struct names *names;
	struct group group; /* the holders, frozen */
	struct reconnect_alias *aliases;
	size_t naliases;
};

void reconnect_hold_init(struct reconnect_hold *hold, struct names *names);
/* Freezes every process of the name space that holds one of the sockets. found[i] is true if a process holds
 * inode i. Waits briefly for a holder of each of the first `due` inodes. -EBUSY if another coordinator works
 * on a holder, or a holder cannot be stopped now. */
must_check int reconnect_hold_freeze(struct reconnect_hold *hold, const uint64_t *inos, size_t n, size_t due,
				     bool *found, struct err *err);
/* Sets shared[i] if a process of the name space that is not in `members` holds inode i. -ENOMEM. */
must_check int reconnect_hold_shared(struct names *names, const struct group *members, const uint64_t *inos,
				     size_t n, bool *shared);
/* True if a process of the job holds one of the sockets. */
bool reconnect_hold_any(struct names *names, struct rpid keeper, const uint64_t *inos, size_t n);
/* Returns a duplicate of a held socket, or -errno. */
must_check int reconnect_hold_duplicate(const struct reconnect_hold *hold, uint64_t ino, struct err *err);
/* Replaces every alias of ends[i].ino by ends[i].fresh, including its epoll registrations. */
must_check int reconnect_hold_replace(struct reconnect_hold *hold, struct end_tcp *ends, size_t n,
				      struct err *err);
/* Thaws the holders. */
void reconnect_hold_free(struct reconnect_hold *hold);

#endif
