#include "scip/job/remote_console_output.h"

#include <errno.h>
#include <string.h>

size_t console_output_room(const struct console_output *output)
{
	return sizeof(output->bytes) - output->len;
}

char *console_output_end(struct console_output *output)
{
	return output->bytes + output->len;
}

void console_output_added(struct console_output *output, size_t n)
{
	output->len += n;
}

size_t console_output_next(struct console_output *output, const char **bytes, uint64_t *position)
{
	const size_t left = output->len - output->sent, n = left < CONSOLE_PIECE ? left : CONSOLE_PIECE;

	*bytes = output->bytes + output->sent;
	*position = output->base + output->sent;
	output->sent += n;
	return n;
}

int console_output_confirm(struct console_output *output, uint64_t position)
{
	const uint64_t n = position - output->base;

	if (position <= output->base)
		return 0; /* confirmed before */
	if (n > output->sent)
		return -EINVAL;
	memmove(output->bytes, output->bytes + n, output->len - n);
	output->base = position;
	output->len -= n;
	output->sent -= n;
	return 0;
}

int console_output_rewind(struct console_output *output, uint64_t position)
{
	int r;

	output->sent = output->len; /* on one of the channels before */
	r = position < output->base ? -EINVAL : console_output_confirm(output, position);
	output->sent = 0;
	return r;
}
