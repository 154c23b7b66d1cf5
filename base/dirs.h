/*
 * Where a user's sockets and checkpoints live.
 *   runtime  $XDG_RUNTIME_DIR/pbeam, or /tmp/pbeam-UID when that is not set. Mode 0700 and owned by the user,
 * else refused. state    $XDG_STATE_HOME/pbeam, or ~/.local/state/pbeam.
 */
#ifndef BASE_DIRS_H
#define BASE_DIRS_H

#include "base/err.h"

/* Fill `buf` (PATH_MAX bytes) with the path, and make the directory and its subdirectory `sub` (may be
 * NULL) with mode 0700. */
must_check int dirs_runtime(char *buf, const char *sub, struct err *err);
must_check int dirs_state(char *buf, const char *sub, struct err *err);

#endif
