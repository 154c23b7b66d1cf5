/* Between unix.c and unix_restore.c. */
#ifndef SCIP_OBJECT_UNIX_SOCKET_H
#define SCIP_OBJECT_UNIX_SOCKET_H

#include "scip/object/object.h"

/* In UnixSocket.shutdown beside 1 (receiving) and 2 (sending): the peer closed with unread data, and the
 * program has not received ECONNRESET yet. */
#define UNIX_SHUTDOWN_RESET 4u

int unix_check(struct object_restore *restore, const Pbeam__Object *object, struct err *err);
int unix_restore(struct object_restore *restore, const Pbeam__Object *object, int *fd, struct err *err);
int unix_finish(struct object_restore *restore, const Pbeam__Object *object, int fd, struct err *err);
int unix_install(struct names *names, const Pbeam__Object *object, const Pbeam__Process *process, int fd,
		 struct batch *batch, struct err *err);

extern const struct object_end_ops unix_end;

#endif
