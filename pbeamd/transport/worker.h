/* Child processes for work that may block. */
#ifndef PBEAMD_TRANSPORT_WORKER_H
#define PBEAMD_TRANSPORT_WORKER_H

#include "pbeamd/transport/server.h"

/* Runs in the child, may block, and replies on `sock`. */
typedef void (*worker_fn)(struct server *server, int sock, const void *arg);
/* Hands the connection to a child that runs `work`. */
must_check int worker_start(struct connection *connection, worker_fn work, const void *arg, struct err *err);
/* fork() for a child without the event loop: it has the original signal handling, and of the daemon's
 * sockets only `keep` (NULL: none) and those that the caller has created. */
pid_t worker_fork(struct server *server, const struct connection *keep);
/* A child has ended. */
void worker_ended(struct server *server, pid_t pid);

#endif
