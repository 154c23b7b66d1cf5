/*
 * scip: run, restore and attach. Everything else is pbeamctl's.
 */
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "scip/job/attach.h"
#include "scip/job/console.h"

enum { STATUS_USAGE = 125 };

static const char usage_text[] =
	"Usage: scip run [-d] [--name NAME] [--interval TIME] [--keep N] [--dir DIR] [--save-files SIZE] "
	"[--] PROGRAM [ARG...]\n"
	"       scip restore [-d] [--force] IMAGE\n"
	"       scip attach VPID|NAME\n"
	"\n"
	"run      runs PROGRAM so that it can be saved and rolled back (pbeamctl checkpoint, rollback)\n"
	"restore  continues a program from an image\n"
	"attach   makes this terminal the console of a program that runs\n"
	"\n"
	"  -d, --detach          in the background: prints the vpid and returns\n"
	"      --name NAME       a name that serves wherever a vpid does\n"
	"      --interval TIME   save it every TIME (90, 90s, 15m, 2h)\n"
	"      --keep N          of the saved ones keep the newest N\n"
	"      --dir DIR         keep them in DIR\n"
	"      --save-files SIZE save contents of open files up to SIZE each (64M)\n"
	"      --force           restore although files have changed since\n"
	"      --help, --version\n";

/* A number with one of the suffixes, each with its factor; -1 when it is not one. */
static int64_t parse_scaled(const char *text, const char *suffixes, const int64_t *factors)
{
	char *end;
	long long n;
	const char *found;

	errno = 0;
	n = strtoll(text, &end, 10);
	if (end == text || errno || n < 0)
		return -1;
	if (!*end)
		return n;
	found = strchr(suffixes, *end);
	if (!found || end[1] || n > INT64_MAX / factors[found - suffixes])
		return -1;
	return n * factors[found - suffixes];
}

static int64_t parse_seconds(const char *text)
{
	static const int64_t factors[] = {1, 60, 3600, 86400};

	return parse_scaled(text, "smhd", factors);
}

static int64_t parse_size(const char *text)
{
	static const int64_t factors[] = {1 << 10, 1 << 20, 1 << 30, 1 << 10, 1 << 20, 1 << 30};

	return parse_scaled(text, "KMGkmg", factors);
}

static int usage(const char *problem)
{
	if (problem)
		fprintf(stderr, "scip: %s; scip --help tells how it is used\n", problem);
	else
		fputs(usage_text, stdout);
	return problem ? STATUS_USAGE : 0;
}

enum {
	OPTION_NAME = 256,
	OPTION_INTERVAL,
	OPTION_KEEP,
	OPTION_DIR,
	OPTION_SAVE_FILES,
	OPTION_FORCE,
	OPTION_STREAMS,
	OPTION_HELP
};

static const struct option run_options[] = {
	{"detach", no_argument, NULL, 'd'},
	{"name", required_argument, NULL, OPTION_NAME},
	{"interval", required_argument, NULL, OPTION_INTERVAL},
	{"keep", required_argument, NULL, OPTION_KEEP},
	{"dir", required_argument, NULL, OPTION_DIR},
	{"save-files", required_argument, NULL, OPTION_SAVE_FILES},
	{"help", no_argument, NULL, OPTION_HELP},
	{NULL, 0, NULL, 0},
};
static const struct option restore_options_list[] = {
	{"detach", no_argument, NULL, 'd'},
	{"force", no_argument, NULL, OPTION_FORCE},
	{"image-streams", no_argument, NULL, OPTION_STREAMS}, /* pbeamd's */
	{"help", no_argument, NULL, OPTION_HELP},
	{NULL, 0, NULL, 0},
};

/* One option. NULL, or what is wrong with it. */
static const char *take_option(int option, const char *value, struct keeper_options *job,
			       struct console_options *console)
{
	int64_t n;

	switch (option) {
	case 'd':
		console->detach = true;
		return NULL;
	case OPTION_NAME:
		job->name = value;
		return strlen(value) < NAME_TEXT_MAX && value[0] && !strchr(value, '/') && value[0] != '.' &&
				       strspn(value, "0123456789") != strlen(value)
			       ? NULL
			       : "a name is up to 63 characters, without '/', not a number and not beginning "
				 "with '.'";
	case OPTION_INTERVAL:
		n = parse_seconds(value);
		job->interval_ns = (uint64_t)n * 1000000000u;
		return n > 0 && n < 400 * 86400 ? NULL : "--interval is a time as in 90, 90s, 15m, 2h";
	case OPTION_KEEP:
		n = parse_scaled(value, "", NULL);
		job->keep = (uint32_t)n;
		return n > 0 && n <= 1000000 ? NULL : "--keep is a number of checkpoints";
	case OPTION_DIR:
		job->dir = value;
		return NULL;
	case OPTION_SAVE_FILES:
		n = parse_size(value);
		job->save_files_max = (uint64_t)n;
		return n >= 0 ? NULL : "--save-files is a size as in 100K, 64M, 1G";
	case OPTION_FORCE:
		job->force = true;
		return NULL;
	case OPTION_STREAMS:
		console->image_streams = true;
		return NULL;
	default:
		return "unknown option, or one that lacks its value";
	}
}

static int run_or_restore(int argc, char **argv, bool restore)
{
	struct keeper_options job = {.console = {-1, -1, -1}, .pty_master = -1, .save_files_max = 64u << 20};
	struct console_options console = {0};
	int option;

	opterr = 0;
	while ((option = getopt_long(argc, argv, "+d", restore ? restore_options_list : run_options, NULL)) >=
	       0) {
		const char *problem;

		if (option == OPTION_HELP)
			return usage(NULL);
		problem = take_option(option, optarg, &job, &console);
		if (problem)
			return usage(problem);
	}
	if (optind >= argc)
		return usage(restore ? "which image?" : "which program?");
	if (restore && optind + 1 < argc)
		return usage("one image, please");
	if (restore)
		job.image = argv[optind];
	else
		job.argv = argv + optind;
	return console_run(&job, &console);
}

int main(int argc, char **argv)
{
	log_open("scip", NULL);
	if (argc < 2)
		return usage("what is to be done?");
	if (!strcmp(argv[1], "run") || !strcmp(argv[1], "restore"))
		return run_or_restore(argc - 1, argv + 1, argv[1][2] == 's');
	if (!strcmp(argv[1], "attach"))
		return argc == 3 ? attach_run(argv[2]) : usage("attach to which program?");
	if (!strcmp(argv[1], "--version")) {
		puts("scip " PBEAM_VERSION);
		return 0;
	}
	if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "help"))
		return usage(NULL);
	return usage("unknown command");
}
