/* Internal to file_undo.c, file_change.c and file_journal.c. */
#ifndef IMAGE_FILE_UNDO_PARTS_H
#define IMAGE_FILE_UNDO_PARTS_H

#include <limits.h>
#include <sys/stat.h>

#include "image/file_undo.h"
#include "proto/undo.pb-c.h"

/* Bytes of the file that will change. */
struct change_range {
	uint64_t start, end;
	ssize_t run; /* index of the pages with the new contents; -1: a hole */
};

struct file_change {
	char *path;
	struct file_wish wish;	 /* wish.path is `path`, wish.pages is `pages` */
	Pbeam__Pages **pages;	 /* sorted by their addresses */
	int fd;			 /* of the file, or of the one that is made; read and write; -1: unchanged */
	bool missing, unchanged; /* unchanged: as its times say */
	struct stat before;
	struct change_range *ranges;
	size_t nranges;
	char *copy;    /* path of the undo copy, or of the new file; NULL: none */
	bool cut_late; /* file_undo_settle() cuts it */
};

/* ---- file_change.c: one file ---- */
/* Opens the file and finds the ranges that differ. 0 or -errno. */
must_check int file_change_plan(struct file_change *change, struct image_reader *image, struct err *err);
/* True if nothing of it changes. */
bool file_change_is_none(const struct file_change *change);
/* Adds what is beyond the new end to the ranges that are copied. */
must_check int file_change_keep_tail(struct file_change *change);
/* Writes the ranges, the length and the times, and syncs. */
must_check int file_change_write(const struct file_change *change, struct image_reader *image,
				 struct err *err);
/* Allocates the room that writing needs; the file may become longer. */
must_check int file_change_reserve(const struct file_change *change, struct err *err);
must_check int file_change_set_times(int fd, uint64_t atime_ns, uint64_t mtime_ns);
/* Opens a file for reading and writing, also one whose mode forbids that to its owner. Returns -errno. */
must_check int file_change_open(const char *path);
void file_change_free(struct file_change *change);

/* ---- file_journal.c ---- */
enum journal_state {
	JOURNAL_PREPARING = 'P',
	JOURNAL_ARMED = 'A',
	JOURNAL_HELD = 'H',
	JOURNAL_SETTLED = 'S',
	JOURNAL_DONE = 'D',
};
struct file_journal {
	int fd; /* -1 none */
	char path[PATH_MAX];
	Pbeam__UndoJournal *message;
};
/* Makes STATE/.undo/PID.journal, empty and locked. */
must_check int file_journal_create(struct file_journal *journal, pid_t keeper, struct err *err);
/* Writes the message with the state PREPARING. */
must_check int file_journal_write(struct file_journal *journal, struct err *err);
/* Changes the state, on disk when this returns. */
must_check int file_journal_set_state(struct file_journal *journal, enum journal_state state,
				      struct err *err);
/* Puts back what the journal lists, names in trees first, removes the copies and the journal. Files that
 * cannot be put back keep it, and are named at the end of `err`, which may be NULL. */
void file_journal_take_back(struct file_journal *journal, struct err *err);
/* Removes the copies and the journal: no file has changed, or all is done. */
void file_journal_drop(struct file_journal *journal);
/* Cuts files, removes the copies and the journal. */
void file_journal_finish(struct file_journal *journal);
void file_journal_close(struct file_journal *journal);

#endif
