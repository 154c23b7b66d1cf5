/*
 * Connects to pbeamd, whose socket is RUNTIME/daemon. If no process listens there, it is started in the
 * background.
 */
#ifndef PROTO_DAEMON_H
#define PROTO_DAEMON_H

#include <stddef.h>

#include "base/err.h"

/* Connects, starting pbeamd if necessary. Returns the socket, which the caller owns, or -errno. */
must_check int daemon_connect(struct err *err);

/* Starts pbeamd if it does not run. Does not wait for it and reports no errors. */
void daemon_start_quietly(void);

/* Finds one of our programs: beside the caller's executable, in the build tree, or on PATH. */
must_check int daemon_find_program(const char *name, char *path, size_t size, struct err *err);

#endif
