/*
 * pbeamd: one event loop, one socket, connections with one request at a time.
 *
 * It keeps nothing that would be lost with it: jobs and processes are in the name table, checkpoints in the
 * state directory, and jobs are run by their keepers. So it may be killed and started again at any moment.
 *
 * The loop never blocks. A request is answered at once (kill), or forwarded to the job's keeper, whose
 * reply is passed back (services/forward.c), or handed to a child that may block and that replies on the
 * connection itself (transport/worker.c).
 */
#ifndef PBEAMD_SERVER_RUN_H
#define PBEAMD_SERVER_RUN_H

#include "base/err.h"
#include "pbeamd/transport/server.h"

/* Serves until SIGTERM, SIGINT, or the idle time. Returns 0, or -errno if it cannot serve: -EADDRINUSE when
 * another daemon does. */
must_check int server_run(const struct server_options *options, struct err *err);

#endif
