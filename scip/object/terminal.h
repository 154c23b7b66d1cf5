/* What console streams and other terminals have in common: settings and foreground group. */
#ifndef SCIP_OBJECT_TERMINAL_H
#define SCIP_OBJECT_TERMINAL_H

#include "scip/object/object.h"
#include "scip/object/pty_queue.h"

/* The device numbers of pseudo-terminals' sides /dev/pts/N. */
#define TERMINAL_MAJOR_FIRST 136u
#define TERMINAL_MAJOR_LAST  143u

/* N of the pseudo-terminal /dev/pts/N that the descriptor is a side of, -1 if it is none. `rdev` is its
 * st_rdev: a side that is hung up answers nothing else. */
int terminal_pts_number(int fd, uint64_t rdev);
/* True for a master, whose number only a descriptor gives. */
bool terminal_is_master(const struct stat *st);
/* N of a path that is /dev/pts/N, else -1. */
int terminal_path_number(const char *path);
/* termios, window size, foreground group, session. The kernel reports the last two only to the terminal's
 * own session, or through a master; else they are taken from /proc/PID/stat of `holder`, if it is its
 * terminal. */
must_check int terminal_dump_settings(struct names *names, struct rpid holder, int fd, Pbeam__Tty *out,
				      struct err *err);
/* Gives the present console's terminal the saved one's name. No effect if it is not a terminal. */
must_check int terminal_renamed(struct object_restore *restore, const Pbeam__Tty *saved, int fd,
				struct err *err);
must_check int terminal_restore_termios(const Pbeam__Tty *saved, int fd, struct err *err);
/* ---- a slave whose master is with a process that is not dumped (scip/bridge) ---- */
/* N of /dev/pts/N if the description is of such a slave; else -1. */
int terminal_slave_apart(struct object_dump *dump, const struct object_source *source);
/* As the kind's dump. `master`: a descriptor of that side, for typed bytes that were not read; -1: these are
 * left where they are. *typed gets these bytes, to be freed by the caller; NULL: they are not wanted. */
must_check int terminal_dump_apart(struct object_dump *dump, const struct object_source *source, int master,
				   Pbeam__Object *out, struct pty_bytes *typed, struct err *err);
/* Before the kind's restore: makes it this terminal (taken), not a new one. */
must_check int terminal_adopt_apart(struct object_restore *restore, const Pbeam__Tty *saved, int slave,
				    struct err *err);

/* A member of the terminal's session restores its foreground group. */
must_check int terminal_install_foreground(struct names *names, const Pbeam__Tty *saved,
					   const Pbeam__Process *process, int fd, struct batch *batch,
					   struct err *err);

#endif
