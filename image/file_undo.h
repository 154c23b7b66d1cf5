/*
 * Changes files to what an image has, as one transaction that can be taken back.
 *
 * Each file is changed in place: it keeps its inode, since it may have other names and open descriptors.
 * Before the first change
 *   - the ranges that differ are found,
 *   - their present contents are copied to a file beside it (.NAME.pbeam-undo-PID.N), by FICLONERANGE where
 * the file system can; in STATE/.undo if that directory cannot be written to,
 *   - a missing file is made under another name (.NAME.pbeam-new-PID.N) and gets its name later,
 *   - all of this is written to disk, with a journal, STATE/.undo/PID.journal,
 *   - the room that the new contents need is allocated.
 * Names in directory trees change by renames: image/file_tree.h.
 *
 * The journal's state says what happens when the process that changes the files is killed, or the power
 * fails:
 *
 *   PREPARING  no file has changed: the copies are removed
 *   ARMED      files may have changed: they are put back, then the copies are removed
 *   HELD       the same, but as long as the keeper lives the outcome of a migration decides
 *   SETTLED    the commit is past: files are cut to their length, then the copies are removed
 *   DONE       the files are as they are to be: copies that could not be removed are
 *
 * file_undo_recover() does that. The writer holds a lock (flock) on its journal, so that a journal in use is
 * left alone.
 */
#ifndef IMAGE_FILE_UNDO_H
#define IMAGE_FILE_UNDO_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>

#include "base/err.h"
#include "proto/image.pb-c.h"
#include "proto/rpc.pb-c.h"

struct file_undo;
struct image_reader;

/* What a file becomes. */
/* A file's times advance in ticks. A time that is older than this changes with the next write. */
#define FILE_TICK_NS 100000000u

struct file_wish {
	const char *path;
	bool contents; /* false: only the length is set, and the file must exist */
	bool by_tree;  /* the file is in a tree; other wishes for it are not needed */
	uint64_t size;
	uint64_t mtime_ns; /* 0: as it is */
	mode_t mode;	   /* of a file that is made */
	size_t n_pages;
	Pbeam__Pages *const *pages; /* runs; their addresses are offsets in the file */
};

/* What happens to a file, for the user. */
enum file_fate { FILE_UNCHANGED, FILE_OVERWRITTEN, FILE_TRUNCATED, FILE_MADE, FILE_TIMES };
struct file_forecast {
	const char *path;
	enum file_fate fate;
	uint64_t bytes;	       /* that are written */
	uint64_t before, size; /* length now, and then */
};

/* `image` has the pages and must outlive it; `keeper` is the process that decides about a held journal. 0 or
 * -errno; nothing is written yet. */
must_check int file_undo_open(struct file_undo **out, struct image_reader *image, pid_t keeper,
			      struct err *err);
/* Adds a file, and compares it. A file that was added before is skipped. 0 or -errno. */
must_check int file_undo_add(struct file_undo *undo, const struct file_wish *wish, struct err *err);
/* Adds a file that stays as it is, for file_undo_forecast() alone. */
must_check int file_undo_add_unchanged(struct file_undo *undo, const char *path, const struct stat *st,
				       struct err *err);
/* Adds a file of an image that has a name: file_list.c. */
must_check int file_undo_add_saved(struct file_undo *undo, const Pbeam__SavedFile *saved, struct err *err);
must_check int file_undo_add_shared(struct file_undo *undo, const Pbeam__SharedMemory *shared,
				    struct err *err);
/* Adds the directory trees of an image: before its files. 0 or -errno. */
must_check int file_undo_add_trees(struct file_undo *undo, const Pbeam__Manifest *manifest, struct err *err);
must_check int file_undo_add_all(struct file_undo *undo, const Pbeam__Manifest *manifest, struct err *err);
/* True if the file has not been written to, nor its attributes been changed, since it was saved. */
bool file_undo_is_unchanged(const Pbeam__SavedFile *saved, const struct stat *st);
/* True if the transaction has the file that is open here. */
bool file_undo_has(const struct file_undo *undo, int fd);
/* Tells what will happen to file number `i`. False: there are no more. */
bool file_undo_forecast(const struct file_undo *undo, size_t i, struct file_forecast *out);
/* The same for all of them, as a message. 0 or -ENOMEM. */
must_check int file_undo_list_fates(const struct file_undo *undo, Pbeam__FileFate ***fates, size_t *n);
/* Copies, reserves and writes the journal. `keep_tails`: what is beyond the new end of a file is copied as
 * well, so that the file can be cut by file_undo_switch(); else file_undo_settle() cuts it, which needs no
 * room. On failure nothing has changed. */
must_check int file_undo_prepare(struct file_undo *undo, bool keep_tails, struct err *err);
/* Gives the files that were made their names. */
must_check int file_undo_place(struct file_undo *undo, struct err *err);
/* Writes the new contents, lengths and times, and syncs them. Once: later calls do nothing. */
must_check int file_undo_switch(struct file_undo *undo, struct err *err);
/* From now on the journal is HELD. */
must_check int file_undo_hold(struct file_undo *undo, struct err *err);
/* Puts all files back. A file that cannot be put back keeps its copy and the journal, and is named at the end
 * of the error. */
void file_undo_take_back(struct file_undo *undo, struct err *err);
/* After the commit, before a process of the image runs: finishes, and removes the copies. */
void file_undo_settle(struct file_undo *undo);
/* Takes back what was prepared and not settled, and frees it. NULL is allowed. */
void file_undo_close(struct file_undo *undo);

/* Carries out the journals of processes that were killed. Call it where no restore of this user can rely on
 * them: before a restore, when a coordinator has been killed, when the daemon starts. 0, or -errno if a
 * journal cannot be read now: the files that it lists are not to be changed then, since they would be put
 * back later. */
must_check int file_undo_recover(struct err *err);
/* Decides the HELD journals of this keeper: `committed` keeps the new files. */
void file_undo_decide(pid_t keeper, bool committed);

#endif
