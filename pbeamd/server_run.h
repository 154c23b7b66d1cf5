/*
 * pbeamd: one event loop, one socket, connections with one request at a time.
 *
 * It keeps nothing that would be lost with it: jobs and processes are in the name table, checkpoints in the
 * state directory, what happens to a job happens in its keeper. So it may be killed and started again at any
 * moment.
 *
 * The loop never blocks. A request is answered at once (kill), or passed on to the job's keeper and answered
 * when the keeper answers (forward.c), or handed to a child that may block and that answers on the connection
 * itself (worker.c).
 */
#ifndef PBEAMD_SERVER_RUN_H
#define PBEAMD_SERVER_RUN_H

#include "base/err.h"
#include "pbeamd/transport/server.h"

/* Runs until it is told to end or has been idle for long enough. Returns 0, or -errno when it could not
 * serve; -EADDRINUSE when another one does. */
must_check int server_run(const struct server_options *options, struct err *err);

#endif
