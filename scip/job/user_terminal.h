/*
 * Terminals: the pty that a job gets, and the user's terminal that a console puts into raw mode.
 */
#ifndef SCIP_JOB_USER_TERMINAL_H
#define SCIP_JOB_USER_TERMINAL_H

#include <stdbool.h>
#include <sys/types.h>
#include <termios.h>

#include "base/err.h"

/* Makes a pty with the settings and the size of the user's terminal `like` (-1: the kernel's settings,
 * 80x24). Both descriptors are the caller's, close-on-exec; the master does not block. */
must_check int terminal_make_pty(int like, int *master, int *slave, struct err *err);

/* Makes the first terminal of these three streams the caller's, who leads a session without one. No effect
 * where none of them is a terminal. */
must_check int terminal_adopt(const int streams[3], struct err *err);
/* Puts the caller's process group into the foreground of the terminal among its standard streams, if there is
 * one. SIGTTOU must be blocked. */
must_check int terminal_to_foreground(struct err *err);

/* The user's terminal in raw mode, once: its settings are kept and put back by terminal_restore(), at exit
 * and on signals that kill; for SIGKILL by a small process that waits for our end. Returns 0 or -errno. */
must_check int terminal_set_raw(int fd);
void terminal_restore(void);
/* That process is no more needed. */
void terminal_dismiss_guard(void);
bool terminal_is_raw(void);

/* True if the caller's process group may read from the terminal (or it is not its controlling terminal). */
bool terminal_is_foreground(int fd);

/* Gives the pty the size of the user's terminal; the foreground group gets SIGWINCH if that changed it. */
void terminal_copy_size(int from, int master);

/* What was typed and the program has not read: taken out of the pty's input. Returns how many bytes. */
size_t terminal_unread(int master, char *bytes, size_t size);
bool terminal_has_unread(int master);
/* Bytes become the input of the user's terminal again, for its next reader (TIOCSTI, which an
 * administrator may have forbidden: then they are lost). */
void terminal_push_back(int fd, const char *bytes, size_t n);

#endif
