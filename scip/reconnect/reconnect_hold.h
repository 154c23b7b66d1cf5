/* Finding who holds sockets, and keeping them frozen. */
#ifndef SCIP_RECONNECT_HOLD_H
#define SCIP_RECONNECT_HOLD_H

#include "scip/checkpoint/group.h"
#include "scip/reconnect/reconnect_end.h"

/* One number of one process that is a wanted socket. */
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
/* Freezes every process of the name space that holds one of the sockets; *found[i] tells whether inode i has
 * any. It is waited a little for those of the first `due` to appear that nobody has. -EBUSY when another
 * coordinator is at work on one of them, or it cannot be stopped now. */
must_check int reconnect_hold_freeze(struct reconnect_hold *hold, const uint64_t *inos, size_t n, size_t due,
				     bool *found, struct err *err);
/* shared[i]: some process of the name space that is not in `members` holds inode i. -ENOMEM. */
must_check int reconnect_hold_shared(struct names *names, const struct group *members, const uint64_t *inos,
				     size_t n, bool *shared);
/* True if a process of the job has one of the sockets. */
bool reconnect_hold_any(struct names *names, struct rpid keeper, const uint64_t *inos, size_t n);
/* Our duplicate of a socket that is held. -errno. */
must_check int reconnect_hold_duplicate(const struct reconnect_hold *hold, uint64_t ino, struct err *err);
/* Puts ends[i].fresh in the place of every alias of ends[i].ino, epoll interest included. */
must_check int reconnect_hold_replace(struct reconnect_hold *hold, struct reconnect_end *ends, size_t n,
				      struct err *err);
/* Thaws all. */
void reconnect_hold_free(struct reconnect_hold *hold);

#endif
