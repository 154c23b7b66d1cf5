/* The queues of a pseudo-terminal, drained and refilled. */
#ifndef SCIP_OBJECT_PTY_QUEUE_H
#define SCIP_OBJECT_PTY_QUEUE_H

#include <stddef.h>

#include "base/err.h"

struct pty_bytes {
	char *data; /* malloc'd */
	size_t len;
};

/* Output of the program behind the slave that was not read from the master, drained and refilled. `slave` -1:
 * the slave is opened if there is any. An empty queue needs only the master. */
must_check int pty_output_look(int master, int slave, struct pty_bytes *out, struct err *err);
must_check int pty_output_put(int slave, const char *data, size_t len, struct err *err);
/* Unread input, unfinished lines included. The slave's settings are as before. */
must_check int pty_input_look(int master, int slave, struct pty_bytes *out, struct err *err);
/* Takes all unread input from a slave that is not canonical. 0 or -errno; free out->data in any case. */
must_check int pty_input_take(int slave, struct pty_bytes *out);
must_check int pty_input_put(int master, int slave, const char *data, size_t len, struct err *err);

#endif
