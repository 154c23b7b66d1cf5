/* pbeamd: the command line. */
#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/dirs.h"
#include "base/io.h"
#include "base/log.h"
#include "pbeamd/server.h"

enum { IDLE_DEFAULT_S = 10, STATUS_USAGE = 2 };

static const char usage[] =
	"usage: pbeamd [--background]\n"
	"\n"
	"The name-space daemon: one for each user, under $XDG_RUNTIME_DIR/pbeam. The commands start it\n"
	"when they need it; it leaves when there has been nothing to do for some seconds. Given on the\n"
	"command line it stays in the foreground and writes `pbeamd: ready` once it serves.\n"
	"\n"
	"  --background   leave when idle, log to $XDG_RUNTIME_DIR/pbeam/log\n"
	"  --version      print the version\n"
	"  --help         print this\n"
	"\n"
	"PBEAMD_IDLE is the number of idle seconds after which it leaves (10), PBEAM_LOG the level of\n"
	"the log (error, warn, info, debug). The manual page pbeamd(8) has more.\n";

/* Sets up the log of one in the background; without one it says nothing. */
static void open_log(bool background)
{
	char path[PATH_MAX];

	if (background && dirs_runtime(path, NULL, NULL) == 0 &&
	    strlen(path) + sizeof("/log") <= sizeof(path)) {
		strcat(path, "/log");
		log_open("pbeamd", path);
	} else {
		log_open("pbeamd", NULL);
	}
}

static int parse(int argc, char **argv, struct server_options *options)
{
	static const struct option known[] = {
		{"background", no_argument, NULL, 'b'},
		{"ready-fd", required_argument, NULL, 'r'},
		{"help", no_argument, NULL, 'h'},
		{"version", no_argument, NULL, 'v'},
		{NULL, 0, NULL, 0},
	};
	const char *idle = getenv("PBEAMD_IDLE");
	int c;

	if (idle && atoi(idle) >= 0)
		options->idle_s = (unsigned)atoi(idle);
	while ((c = getopt_long(argc, argv, "h", known, NULL)) != -1) {
		switch (c) {
		case 'b':
			options->background = true;
			break;
		case 'r':
			options->ready_fd = atoi(optarg);
			break;
		case 'h':
			fputs(usage, stdout);
			exit(0);
		case 'v':
			puts("pbeamd " PBEAM_VERSION);
			exit(0);
		default:
			fputs("pbeamd: try `pbeamd --help`\n", stderr);
			return STATUS_USAGE;
		}
	}
	if (optind < argc) {
		fprintf(stderr, "pbeamd: %s: it takes no arguments; try `pbeamd --help`\n", argv[optind]);
		return STATUS_USAGE;
	}
	return 0;
}

int main(int argc, char **argv)
{
	struct server_options options = {.idle_s = IDLE_DEFAULT_S, .ready_fd = -1};
	struct err err = ERR_INIT;
	int r = parse(argc, argv, &options);

	if (r)
		return r;
	open_log(options.background);
	r = server_run(&options, &err);
	if (r == -EADDRINUSE && options.background)
		return 0;
	if (r < 0) {
		log_error("%s", err.text);
		if (options.ready_fd >= 0 && io_write_full(options.ready_fd, err.text, strlen(err.text)) < 0)
			log_debug("nobody waits for us any more");
		return 1;
	}
	return 0;
}
