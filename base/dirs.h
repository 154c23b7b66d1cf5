/*
 * Where a user's sockets and checkpoints live. All are of mode 0700 and owned by the user, else refused.
 *
 * State: $XDG_STATE_HOME/pbeam, or ~/.local/state/pbeam.
 *
 * Runtime: the first of these that holds:
 *   1. SESSION/pbeam if a name table is there. SESSION is $XDG_RUNTIME_DIR, or without it /run/user/UID if
 *      that is the user's;
 *   2. STATE/.run/MACHINE, the refuge, if jobs run there: they were started without a session, or their
 * session's directory was removed (systemd does that at the last logout);
 *   3. SESSION/pbeam if there is a session and its directory exists or can be made;
 *   4. /tmp/pbeam-UID, the place of older versions, if jobs run there. Anybody could have made it, so it is
 * not made any more;
 *   5. the refuge.
 * The answer may change while a program runs, so it is not kept.
 */
#ifndef BASE_DIRS_H
#define BASE_DIRS_H

#include <stdbool.h>

#include "base/err.h"

/* Below the refuge: links to the tables of processes whose directory was removed (namespace/names_publish.c).
 */
#define DIRS_TABLES "tables"

/* Fill `buf` (PATH_MAX bytes) with the path, and make the directory and its subdirectory `sub` (may be
 * NULL) with mode 0700. */
must_check int dirs_runtime(char *buf, const char *sub, struct err *err);
/* Only the path, if the directory is there: -ENOENT. */
must_check int dirs_find_refuge(char *buf);
must_check int dirs_refuge(char *buf, const char *sub, struct err *err);
must_check int dirs_state(char *buf, const char *sub, struct err *err);

/* True if `path` is `dir` or below it. Both are absolute, without "." and "..", and end in no slash. */
bool dirs_contain(const char *dir, const char *path);

#endif
