#include "pbeamctl/progress.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "pbeamctl/format.h"

enum { WIDTH = 24, PHASE_MAX = 8, DETAIL_MAX = 38, NOTE_MAX = 400 };

static bool shown; /* a bar is on the terminal */

void progress_show(const Pbeam__Progress *progress)
{
	char bar[WIDTH + 1];
	uint64_t done = progress->done < progress->total ? progress->done : progress->total;
	unsigned percent = progress->total ? (unsigned)((double)done * 100 / (double)progress->total) : 0;

	if (progress->note[0]) {
		progress_end();
		fputs("pbeamctl: ", stderr);
		format_text_to(stderr, progress->note, NOTE_MAX);
		fputc('\n', stderr);
	}
	if (!isatty(STDERR_FILENO))
		return;
	memset(bar, ' ', WIDTH);
	memset(bar, '#', percent * WIDTH / 100);
	bar[WIDTH] = 0;
	fputc('\r', stderr);
	format_text_to(stderr, progress->phase, PHASE_MAX);
	fprintf(stderr, " [%s] %3u %% ", bar, percent);
	format_text_to(stderr, progress->detail, DETAIL_MAX);
	fputs("\033[K", stderr);
	fflush(stderr);
	shown = true;
}

void progress_end(void)
{
	if (shown)
		fputs("\r\033[K", stderr);
	shown = false;
}
