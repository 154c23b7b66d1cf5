#include "pbeamctl/progress.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { WIDTH = 30 };

static bool shown; /* there is a bar on the terminal */

void progress_show(const char *phase, uint64_t done, uint64_t total)
{
	char bar[WIDTH + 1];
	unsigned percent = total ? (unsigned)(done * 100 / total) : 0;

	if (!isatty(STDERR_FILENO))
		return;
	if (percent > 100)
		percent = 100;
	memset(bar, ' ', WIDTH);
	memset(bar, '#', percent * WIDTH / 100);
	bar[WIDTH] = 0;
	fprintf(stderr, "\r%-8.8s [%s] %3u %%", phase, bar, percent);
	fflush(stderr);
	shown = true;
}

void progress_end(void)
{
	if (shown)
		fputs("\r\033[K", stderr);
	shown = false;
}
