/*
 * Directory trees in the transaction of image/file_undo.h.
 *
 * A name that has to change is changed by two renames in its directory: what has it goes to another name
 * (.NAME.pbeam-old-PID.N), then what was made ahead (.NAME.pbeam-new-PID.N) gets it. A missing directory is
 * made with all that is in it, one that was created since is moved as a whole. So nothing is lost before the
 * commit, and taking back is two renames as well. After the commit the old ones are removed.
 *
 * A regular file that has its inode still is changed in place like any other (file_undo_add()), since others
 * may have it open.
 *
 * Left alone: sockets, FIFOs and devices, what is mounted in the tree, and copies that an earlier rollback
 * kept (NAME.before-rollback-N).
 */
#ifndef IMAGE_FILE_TREE_H
#define IMAGE_FILE_TREE_H

#include "image/file_undo_parts.h"

struct tree_node {
	char *path; /* absolute */
	char *made; /* what was made for it, until it is placed; NULL: nothing */
	enum { NODE_KEPT, NODE_WRITTEN, NODE_NEW } state;
	struct stat before; /* but of NODE_NEW */
};

/* What the names beside have in them. */
#define TREE_OLD ".pbeam-old-"
#define TREE_NEW ".pbeam-new-"

struct tree_step {
	char *path, *old, *new;
	size_t top; /* index of the entry that is made, with what is in it */
	uint64_t old_ino, new_ino;
	mode_t old_mode;
};
struct file_tree {
	const Pbeam__SavedTree *saved;
	const Pbeam__Manifest *manifest;
	uint64_t mount; /* the mount that has it */
	struct tree_node *nodes;
	struct tree_step *steps;
	size_t nsteps;
};

/* Compares a tree of the image, which is the file `image`, with what is there. Files that are changed in
 * place are added to `undo`. 0 or -errno. */
must_check int file_tree_plan(struct file_tree **out, struct file_undo *undo, const Pbeam__Manifest *manifest,
			      const Pbeam__SavedTree *saved, const struct stat *image, struct err *err);
/* True if the image has this path in the tree. */
bool file_tree_has(const struct file_tree *tree, const char *path);
/* True if a name or an attribute changes. */
bool file_tree_changes(const struct file_tree *tree);
/* Chooses the names beside, and lists the steps in the journal. 0 or -errno. */
must_check int file_tree_list(struct file_tree *tree, Pbeam__UndoJournal *journal, struct err *err);
/* Makes what is missing, on disk when this returns. `first`: the index of the tree's first step in the
 * journal, where the new inodes are noted. 0 or -errno. */
must_check int file_tree_make(struct file_tree *tree, struct image_reader *image, Pbeam__UndoJournal *journal,
			      size_t first, struct err *err);
/* Does the steps, on disk when this returns. 0 or -errno. */
must_check int file_tree_place(const struct file_tree *tree, struct err *err);
/* Adds what happens to each file whose name changes. 0 or -ENOMEM. */
must_check int file_tree_list_fates(const struct file_tree *tree, Pbeam__FileFate ***fates, size_t *n);
void file_tree_free(struct file_tree *tree);

/* ---- file_tree_step.c: by the journal alone ---- */
/* Moves a name, which must not be taken. 0 or -errno. */
must_check int file_tree_move(const char *from, const char *to);
/* Removes a file, or a directory with all that is in it on the same mount. 0 or -errno. */
must_check int file_tree_remove(const char *path);
/* False for a step whose names are not those that file_tree_list() chooses: what they name is not removed. */
bool file_tree_step_is_valid(const Pbeam__UndoStep *step);
must_check int file_tree_step_back(const Pbeam__UndoStep *step);
/* Removes what was made; what was moved away. False if it stays, which is logged. */
bool file_tree_step_drop(const Pbeam__UndoStep *step);
bool file_tree_step_finish(const Pbeam__UndoStep *step);
/* Sets the earlier time, or the new time and mode. 0 or -errno. */
must_check int file_tree_set_attributes(const Pbeam__UndoAttributes *attributes, bool back);

/* ---- file_tree_walk.c ---- */
/* The mount of a directory (statx(2), STATX_MNT_ID). 0 or -errno. */
must_check int file_tree_mount(const char *path, uint64_t *mount);
/* Calls `visit` for all that is in a directory, a directory before what is in it; another mount is not
 * entered. Names that begin with a dot are visited as well. 0, -errno, or what `visit` returns if it is not
 * 0; FILE_TREE_SKIP: a directory is not entered. */
enum { FILE_TREE_SKIP = 1 };
typedef int (*file_tree_visit_fn)(void *arg, const char *path, const struct stat *st, bool mounted);
must_check int file_tree_walk(const char *path, file_tree_visit_fn visit, void *arg);

#endif
