/*
 * Files of a job that has ended: has somebody else written to them since?
 *
 * When a job ends its keeper records what the files of the newest image are then (inode, size, time of the
 * last write), in DIR/ended beside the image. A restore compares. The time of the last change of the inode
 * says nothing: a restore that failed and was undone has changed it, and so has chmod(). A file that is
 * another one by then is not overwritten, or with --force kept beside as NAME.before-rollback-N. A keeper
 * that was killed leaves no record; then nothing is known and nothing is refused.
 */
#ifndef IMAGE_FILE_GUARD_H
#define IMAGE_FILE_GUARD_H

#include <stdbool.h>

#include "base/err.h"
#include "proto/rpc.pb-c.h"

/* Records the files of the image PATH. Best effort: a failure is logged. */
void file_guard_record(const char *path);
/* Removes the record beside the image PATH: the job runs again. */
void file_guard_forget(const char *path);
/* True if there is one beside the image PATH. */
bool file_guard_has_record(const char *path);
/* Sets `foreign` of the files that change and that somebody else has written to. 0 or -errno. */
must_check int file_guard_mark(const char *path, Pbeam__FileFate *const *fates, size_t n, struct err *err);
/* Refuses (-ESTALE) if one is marked; with `force` copies each of these, and appends a sentence about it to
 * *notes and the copy's path to *kept. 0 or -errno; after a failure nothing is kept. */
must_check int file_guard_keep(Pbeam__FileFate *const *fates, size_t n, bool force, char ***notes,
			       size_t *nnotes, char ***kept, size_t *nkept, struct err *err);
/* Removes the copies: the restore has failed, and the files are as they were. */
void file_guard_drop(char *const *kept, size_t n);

#endif
