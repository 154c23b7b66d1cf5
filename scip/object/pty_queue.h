/* What waits in a pseudo-terminal, taken out and put back. */
#ifndef SCIP_OBJECT_PTY_QUEUE_H
#define SCIP_OBJECT_PTY_QUEUE_H

#include <stddef.h>

#include "base/err.h"

struct pty_bytes {
	char *data; /* malloc'd */
	size_t len;
};

/* What the program behind the slave has written and nobody has read from the master, taken and put back;
 * `slave` -1 opens it if there is something. Needs the master alone while nothing is waiting. */
must_check int pty_output_look(int master, int slave, struct pty_bytes *out, struct err *err);
must_check int pty_output_put(int slave, const char *data, size_t len, struct err *err);
/* What was typed and not yet read, unfinished lines included. The slave's settings are as before. */
must_check int pty_input_look(int master, int slave, struct pty_bytes *out, struct err *err);
must_check int pty_input_put(int master, int slave, const char *data, size_t len, struct err *err);

#endif
