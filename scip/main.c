/*
 * scip: run, restore and attach. Everything else is pbeamctl's.
 */
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/parse.h"
#include "base/text.h"
#include "image/store.h"
#include "scip/cut/cut.h"
#include "scip/job/attach.h"
#include "scip/job/console.h"
#include "scip/job/image_check.h"
#include "scip/job/image_stack.h"
#include "scip/job/part.h"
#include "scip/job/receive.h"
#include "scip/job/tracking.h"
#include "scip/reconnect/reconnect.h"
#include "scip/supervisor/successor.h"

enum { STATUS_USAGE = 125 };

static const char usage_text[] =
	"Usage: scip run [-d] [--name NAME] [--interval TIME] [--keep N] [--dir DIR] [--group NAME] "
	"[--save-files SIZE] [--track DIR]... [--close-inherited] [--] PROGRAM [ARG...]\n"
	"       scip restore [-d] [--force] [--check] IMAGE\n"
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
	"      --group NAME      a group of jobs, also on other hosts, that is saved as one\n"
	"      --save-files SIZE save contents of open files up to SIZE each (all)\n"
	"      --track DIR       save DIR as a whole; a rollback puts all of it back (repeatable)\n"
	"      --close-inherited close the descriptors from 3 on that the program would inherit\n"
	"      --force           restore although files have changed since\n"
	"      --check           restore nothing: print what would prevent it here; 0 nothing, 1 something\n"
	"      --help, --version\n";

static int main_usage(const char *problem)
{
	if (problem)
		fprintf(stderr, "scip: %s; scip --help tells how it is used\n", text_visible(problem));
	else
		fputs(usage_text, stdout);
	return problem ? STATUS_USAGE : 0;
}

enum {
	OPTION_NAME = 256,
	OPTION_INTERVAL,
	OPTION_KEEP,
	OPTION_DIR,
	OPTION_GROUP,
	OPTION_SAVE_FILES,
	OPTION_CLOSE_INHERITED,
	OPTION_TRACK,
	OPTION_FORCE,
	OPTION_CHECK,
	OPTION_STREAMS,
	OPTION_HELP
};

static const struct option run_options[] = {
	{"detach", no_argument, NULL, 'd'},
	{"name", required_argument, NULL, OPTION_NAME},
	{"interval", required_argument, NULL, OPTION_INTERVAL},
	{"keep", required_argument, NULL, OPTION_KEEP},
	{"dir", required_argument, NULL, OPTION_DIR},
	{"group", required_argument, NULL, OPTION_GROUP},
	{"save-files", required_argument, NULL, OPTION_SAVE_FILES},
	{"track", required_argument, NULL, OPTION_TRACK},
	{"close-inherited", no_argument, NULL, OPTION_CLOSE_INHERITED},
	{"help", no_argument, NULL, OPTION_HELP},
	{NULL, 0, NULL, 0},
};
static const struct option restore_options_list[] = {
	{"detach", no_argument, NULL, 'd'},
	{"force", no_argument, NULL, OPTION_FORCE},
	{"check", no_argument, NULL, OPTION_CHECK},
	{"image-streams", no_argument, NULL, OPTION_STREAMS}, /* pbeamd's */
	{"help", no_argument, NULL, OPTION_HELP},
	{NULL, 0, NULL, 0},
};

/* One option. NULL, or what is wrong with it. */
static const char *take_option(int option, const char *value, struct keeper_options *job,
			       struct console_options *console, struct err *err)
{
	uint64_t n;

	switch (option) {
	case 'd':
		console->detach = true;
		return NULL;
	case OPTION_NAME:
		job->name = value;
		return store_check_name(value, err) < 0 ? err->text : NULL;
	case OPTION_INTERVAL:
		return parse_duration(value, &job->interval_ns, err) < 0 ? err->text : NULL;
	case OPTION_KEEP:
		if (parse_number(value, 1, 1000000, &n, err) < 0)
			return err->text;
		job->keep = (uint32_t)n;
		return NULL;
	case OPTION_DIR:
		job->dir = value;
		return NULL;
	case OPTION_GROUP:
		job->group = value;
		return store_check_name(value, err) < 0 ? err->text : NULL;
	case OPTION_SAVE_FILES:
		return parse_size(value, &job->save_files_max, err) < 0 ? err->text : NULL;
	case OPTION_TRACK:
		return tracking_add(job, value, err) < 0 ? err->text : NULL;
	case OPTION_CLOSE_INHERITED:
		console->close_inherited = true;
		return NULL;
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
	struct keeper_options job = {.console = {-1, -1, -1}, .pty_master = -1, .save_files_max = UINT64_MAX};
	struct console_options console = {0};
	struct err err = ERR_INIT;
	bool check = false;
	int option;

	opterr = 0;
	while ((option = getopt_long(argc, argv, "+dh", restore ? restore_options_list : run_options,
				     NULL)) >= 0) {
		const char *problem;

		if (option == OPTION_HELP || option == 'h')
			return main_usage(NULL);
		check = check || option == OPTION_CHECK;
		problem = option == OPTION_CHECK ? NULL : take_option(option, optarg, &job, &console, &err);
		if (problem)
			return main_usage(problem);
	}
	if (optind >= argc)
		return main_usage(restore ? "missing image" : "missing program");
	if (restore && optind + 1 < argc)
		return main_usage("unexpected argument after the image");
	if (tracking_check_store(&job, &err) < 0)
		return main_usage(err.text);
	if (check)
		return image_check_run(argv[optind], job.force);
	if (restore)
		job.image = argv[optind];
	else
		job.argv = argv + optind;
	return console_run(&job, &console);
}

static int main_attach(int argc, char **argv)
{
	int word = argc > 1 && !strcmp(argv[1], "--") ? 2 : 1;

	if (argc > 1 && (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h")))
		return main_usage(NULL);
	return argc == word + 1 ? attach_run(argv[word]) : main_usage("attach needs one VPID or NAME");
}

/* What `pbeamctl stack IMAGE` executes, under its own name. */
static int main_stack(int argc, char **argv, const char *program)
{
	int word = argc > 1 && !strcmp(argv[1], "--") ? 2 : 1;

	return argc == word + 1 ? image_stack_run(program, argv[word]) : main_usage("stack needs one image");
}

/* What a keeper or scip of another version executes. */
static int main_succeed(int argc, char **argv)
{
	struct successor from;

	if (argc > 0 && !strcmp(argv[0], "check"))
		return successor_answer(argc, argv);
	if (successor_parse(&from, argc, argv) < 0)
		return main_usage("succeed is for the programs of a running job");
	if (!strcmp(from.role, "keeper"))
		keeper_take_over(&from);
	if (!strcmp(from.role, "scip"))
		supervisor_take_over(&from);
	successor_go_back(&from, "this version does not know the program's part in the job");
	return STATUS_USAGE;
}

int main(int argc, char **argv)
{
	log_open("scip", NULL);
	if (argc < 2)
		return main_usage("missing command");
	if (!strcmp(argv[1], "run") || !strcmp(argv[1], "restore"))
		return run_or_restore(argc - 1, argv + 1, argv[1][2] == 's');
	if (!strcmp(argv[1], "attach"))
		return main_attach(argc - 1, argv + 1);
	if (!strcmp(argv[1], "stack"))
		return main_stack(argc - 1, argv + 1, strstr(argv[0], "pbeamctl") ? "pbeamctl" : "scip");
	if (!strcmp(argv[1], "succeed"))
		return main_succeed(argc - 2, argv + 2);
	if (!strcmp(argv[1], "reconnect")) /* pbeamd's */
		return reconnect_main();
	if (!strcmp(argv[1], "part")) /* pbeamd's */
		return part_run();
	if (!strcmp(argv[1], "console")) /* pbeamd's */
		return attach_serve();
	if (!strcmp(argv[1], "cut") && argc == 3) /* pbeamd's */
		return cut_lead_main(argv[2]);
	if (!strcmp(argv[1], "receive")) /* pbeamd's */
		return receive_run();
	if (!strcmp(argv[1], "--version")) {
		puts("scip " PBEAM_VERSION);
		return 0;
	}
	if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "help"))
		return main_usage(NULL);
	return main_usage("unknown command");
}
