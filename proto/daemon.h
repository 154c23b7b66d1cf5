/*
 * Reaching pbeamd: its socket is RUNTIME/daemon; where nobody listens it is started in the background.
 */
#ifndef PROTO_DAEMON_H
#define PROTO_DAEMON_H

#include <stddef.h>

#include "base/err.h"

/* Connects, starting pbeamd if need be. Returns the socket (the caller closes it) or -errno. */
must_check int daemon_connect(struct err *err);

/* Sees to it that a pbeamd runs, without waiting for it and without a word when it cannot be. */
void daemon_start_quietly(void);

/* Finds one of our programs: beside the caller's own executable, in the build tree, on PATH. */
must_check int daemon_find_program(const char *name, char *path, size_t size, struct err *err);

#endif
