/*
 * Terminals: the pty that a job gets, and the user's terminal that a console puts into raw mode.
 */
#ifndef SCIP_JOB_TERMINAL_H
#define SCIP_JOB_TERMINAL_H

#include <stdbool.h>
#include <sys/types.h>
#include <termios.h>

#include "base/err.h"

/* Makes a pty with the settings and the size of the user's terminal `like` (-1: the kernel's settings,
 * 80x24). Both descriptors are the caller's, close-on-exec; the master does not block. */
must_check int terminal_make_pty(int like, int *master, int *slave, struct err *err);

/* A new descriptor of the master's other side. Needed after the death of the session leader that had it as
 * its terminal: the kernel hangs up all that were open then. */
must_check int terminal_open_slave(int master, struct err *err);

/* In the job's first process, before it is executed, in a session of its own: makes `slave` its terminal. */
must_check int terminal_adopt(int slave, struct err *err);

/* The user's terminal in raw mode, once: its settings are kept and put back by terminal_restore(), at exit
 * and on signals that kill. Returns 0 or -errno. */
must_check int terminal_set_raw(int fd);
void terminal_restore(void);
bool terminal_is_raw(void);

/* True if the caller's process group may read from the terminal (or it is not its controlling terminal). */
bool terminal_is_foreground(int fd);

/* Gives the pty the size of the user's terminal; the foreground group gets SIGWINCH if that changed it. */
void terminal_copy_size(int from, int master);

#endif
