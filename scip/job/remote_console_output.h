/*
 * What a program wrote to one stream of its console and home has not confirmed yet.
 *
 * The bytes stay here until home has written them, so that none is lost and none comes twice when a channel
 * breaks. At most CONSOLE_WINDOW bytes are under way: home always reads them, so that the channel's TCP
 * window never closes (TCP_USER_TIMEOUT ends a connection whose window stays closed, tcp(7)).
 */
#ifndef SCIP_JOB_REMOTE_CONSOLE_OUTPUT_H
#define SCIP_JOB_REMOTE_CONSOLE_OUTPUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

enum { CONSOLE_WINDOW = 262144, CONSOLE_PIECE = 32768 };

/* Zeroed to begin with. */
struct console_output {
	uint64_t base;		    /* position in the stream of the first byte here */
	size_t len;		    /* bytes here ... */
	size_t sent;		    /* ... and of these, sent on this channel */
	char bytes[CONSOLE_WINDOW]; /* from `base` on */
};

/* Bytes that can be added, at console_output_end(). */
size_t console_output_room(const struct console_output *output);
char *console_output_end(struct console_output *output);
/* `n` bytes were added. */
void console_output_added(struct console_output *output, size_t n);
/* The next piece to send, at most CONSOLE_PIECE bytes, as it lies here; *position is that of its first byte.
 * Returns its length, 0 for none. It counts as sent. */
size_t console_output_next(struct console_output *output, const char **bytes, uint64_t *position);
/* Home has written all before `position`: it is dropped. -EINVAL: that was never sent. */
must_check int console_output_confirm(struct console_output *output, uint64_t position);
/* On a new channel home goes on at `position`: what comes behind it counts as not sent. -EINVAL: as above. */
must_check int console_output_rewind(struct console_output *output, uint64_t position);

#endif
