/* Children for what may block. */
#ifndef PBEAMD_TRANSPORT_WORKER_H
#define PBEAMD_TRANSPORT_WORKER_H

#include "pbeamd/transport/server.h"

/* In the child: answers on `sock`, blocking. */
typedef void (*worker_fn)(struct server *server, int sock, const void *arg);
/* The connection goes to a child that runs `work`. */
must_check int worker_start(struct connection *connection, worker_fn work, const void *arg, struct err *err);
/* As fork() for a child that goes on without the loop: signals as at the start, none of our sockets open but
 * those that the caller has made. `keep` (NULL: none) is a connection that stays open. */
pid_t worker_fork(struct server *server, const struct connection *keep);
/* A child has ended. */
void worker_ended(struct server *server, pid_t pid);
/* For workers. */
void worker_refuse(int sock, const struct err *err);

#endif
