/* What console streams and other terminals have in common: settings and foreground group. */
#ifndef SCIP_OBJECT_TERMINAL_H
#define SCIP_OBJECT_TERMINAL_H

#include "scip/object/object.h"

/* termios, window size, foreground group, session. The kernel tells the last two only to the terminal's own
 * session, or of a master; else they are taken from /proc/PID/stat of `holder`, if it is its terminal. */
must_check int terminal_dump_settings(struct names *names, struct rpid holder, int fd, Pbeam__Tty *out,
				      struct err *err);
must_check int terminal_restore_termios(const Pbeam__Tty *saved, int fd, struct err *err);
/* A member of the terminal's session makes its foreground group what it was. */
must_check int terminal_install_foreground(struct names *names, const Pbeam__Tty *saved,
					   const Pbeam__Process *process, int fd, struct batch *batch,
					   struct err *err);

#endif
