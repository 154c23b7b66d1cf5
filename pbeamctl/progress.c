#include "pbeamctl/progress.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { WIDTH = 24, PHASE_MAX = 8, DETAIL_MAX = 38, NOTE_MAX = 400 };

static bool shown; /* a bar is on the terminal */

/* Control characters from other processes must not reach the terminal. */
static void print_plain(const char *text, int max)
{
	for (int i = 0; i < max && text[i]; i++)
		fputc((unsigned char)text[i] < ' ' || text[i] == 0x7f ? '?' : text[i], stderr);
}

void progress_show(const Pbeam__Progress *progress)
{
	char bar[WIDTH + 1];
	uint64_t done = progress->done < progress->total ? progress->done : progress->total;
	unsigned percent = progress->total ? (unsigned)((double)done * 100 / (double)progress->total) : 0;

	if (progress->note[0]) {
		progress_end();
		fputs("pbeamctl: ", stderr);
		print_plain(progress->note, NOTE_MAX);
		fputc('\n', stderr);
	}
	if (!isatty(STDERR_FILENO))
		return;
	memset(bar, ' ', WIDTH);
	memset(bar, '#', percent * WIDTH / 100);
	bar[WIDTH] = 0;
	fputc('\r', stderr);
	print_plain(progress->phase, PHASE_MAX);
	fprintf(stderr, " [%s] %3u %% ", bar, percent);
	print_plain(progress->detail, DETAIL_MAX);
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
