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

/* ---- unix_aside.c: paths that processes which are replaced have ---- */
struct sockaddr_un;
/* Where the socket of this path is until the commit: the path itself, or another one. */
const char *unix_aside_path(const struct object_restore *restore, const char *path);
bool unix_aside_is_wanted(const struct object_restore *restore, const Pbeam__UnixSocket *saved,
			  const char *path);
/* Before and after the bind() to the path, whose result is `r`. After a failure the old socket is there. */
must_check int unix_aside_begin(struct object_restore *restore, const Pbeam__UnixSocket *saved,
				const char *path, struct err *err);
must_check int unix_aside_bound(struct object_restore *restore, int r, struct err *err);
/* Removes the socket of this path; the one of the old process goes after the commit. */
void unix_aside_unlink(struct object_restore *restore, const char *path);
/* The address by which a socket of the image with this name is reached now. */
void unix_reach(struct object_restore *restore, const ProtobufCBinaryData *name, struct sockaddr_un *out,
		unsigned *len);

extern const struct object_end_ops unix_end;

#endif
