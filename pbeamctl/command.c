#include "pbeamctl/command.h"

#include <getopt.h>
#include <stdarg.h>
#include <string.h>

#include "base/text.h"

const struct command *const command_table[] = {
	&ps_command,	     &checkpoint_command,
	&log_command,	     &rollback_command,
	&kill_command,	     &attach_command,
	&stack_command,	     &image_command,
	&migrate_command,    &hosts_command,
	&upgrade_command,    &doctor_command,
	&completion_command, NULL,
};

const struct command_option command_no_options[] = {{NULL, 0, NULL, NULL, NULL}};

static const struct command *command_find(const char *name)
{
	for (int i = 0; command_table[i]; i++)
		if (!strcmp(command_table[i]->name, name))
			return command_table[i];
	return NULL;
}

static void print_overview(FILE *out)
{
	fputs("usage: pbeamctl COMMAND [OPTION...] [ARGUMENT...]\n\n", out);
	for (int i = 0; command_table[i]; i++)
		fprintf(out, "  %-11s %s\n", command_table[i]->name, command_table[i]->summary);
	fputs("\nA VPID is the number that the program gets from getpid(); a NAME is the one given to\n"
	      "`scip run --name`. For details see `pbeamctl COMMAND --help` and pbeamctl(1).\n"
	      "Exit status: 0 success, 1 refused or failed, 2 usage error, 3 incomplete.\n",
	      out);
}

static void print_help(const struct command *command)
{
	const char *gap = command->synopsis[0] ? " " : "";

	printf("usage: pbeamctl %s%s%s\n\n%s\n", command->name, gap, command->synopsis, command->text);
	if (command->options[0].name)
		putchar('\n');
	for (const struct command_option *o = command->options; o->name; o++) {
		char left[40], letter[8] = "    ";

		if (o->letter)
			snprintf(letter, sizeof(letter), "-%c, ", o->letter);
		snprintf(left, sizeof(left), "%s--%s%s%s", letter, o->name, o->argument ? " " : "",
			 o->argument ? o->argument : "");
		printf("  %-24s %s\n", left, o->help);
	}
}

int command_failed(const struct err *err)
{
	fprintf(stderr, "pbeamctl: %s\n", err->text);
	return STATUS_FAILED;
}

int command_misused(const struct command *command, const char *fmt, ...)
{
	const char *gap = command ? " " : "", *name = command ? command->name : "";
	char problem[1024];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(problem, sizeof(problem), fmt, ap);
	va_end(ap);
	fprintf(stderr, "pbeamctl%s%s: %s; try `pbeamctl%s%s --help`\n", gap, name, text_visible(problem),
		gap, name);
	return STATUS_USAGE;
}

const char *command_value(const struct command_line *line, const char *name)
{
	const struct command_option *options = line->command->options;

	for (int i = 0; options[i].name; i++)
		if (!strcmp(options[i].name, name))
			return line->values[i];
	return NULL;
}

const char *command_repeated(const struct command_line *line, const char *name, int nth)
{
	for (int i = 0; i < line->ngiven; i++)
		if (!strcmp(line->command->options[line->given[i].option].name, name) && nth-- == 0)
			return line->given[i].value;
	return NULL;
}

bool command_flag(const struct command_line *line, const char *name)
{
	return command_value(line, name) != NULL;
}

enum { OPTION_HELP = 1000, OPTION_FIRST };

/* Converts the row's options for getopt_long(). Every command also has -h and --help. */
static void make_getopt(const struct command *command, struct option *longs, char *shorts)
{
	int n = 0, s = 0;

	shorts[s++] = ':';
	shorts[s++] = 'h';
	for (const struct command_option *o = command->options; o->name; o++, n++) {
		longs[n] = (struct option){o->name, o->argument ? required_argument : no_argument, NULL,
					   OPTION_FIRST + n};
		if (o->letter)
			shorts[s++] = o->letter;
		if (o->letter && o->argument)
			shorts[s++] = ':';
	}
	longs[n++] = (struct option){"help", no_argument, NULL, OPTION_HELP};
	longs[n] = (struct option){NULL, 0, NULL, 0};
	shorts[s] = 0;
}

static int option_index(const struct command *command, int c)
{
	if (c >= OPTION_FIRST)
		return c - OPTION_FIRST;
	for (int i = 0; command->options[i].name; i++)
		if (command->options[i].letter == c)
			return i;
	return -1;
}

/* Returns -1 to continue, or the exit status. */
static int command_parse(const struct command *command, int argc, char **argv, struct command_line *line)
{
	struct option longs[COMMAND_OPTIONS_MAX + 2];
	char shorts[2 * COMMAND_OPTIONS_MAX + 4];
	int c;

	make_getopt(command, longs, shorts);
	opterr = 0;
	optind = 1;
	while ((c = getopt_long(argc, argv, shorts, longs, NULL)) != -1) {
		int i = option_index(command, c);

		if (c == OPTION_HELP || c == 'h') {
			print_help(command);
			return STATUS_DONE;
		}
		if (c == ':')
			return command_misused(command, "%s requires an argument", argv[optind - 1]);
		if (c == '?' || i < 0)
			return command_misused(command, "%s: unknown option", argv[optind - 1]);
		line->values[i] = optarg ? optarg : "";
		if (line->ngiven == COMMAND_GIVEN_MAX)
			return command_misused(command, "more than %d options given", COMMAND_GIVEN_MAX);
		line->given[line->ngiven].option = i;
		line->given[line->ngiven++].value = line->values[i];
	}
	line->words = argv + optind;
	line->nwords = argc - optind;
	if (line->nwords < command->least)
		return command_misused(command, "missing argument: %s", command->synopsis);
	if (line->nwords > command->most)
		return command_misused(command, "%s: unexpected argument", line->words[command->most]);
	return -1;
}

int command_main(int argc, char **argv)
{
	struct command_line line = {.command = NULL};
	const struct command *command;
	int r;

	if (argc < 2) {
		print_overview(stderr);
		return STATUS_USAGE;
	}
	if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") || !strcmp(argv[1], "help")) {
		print_overview(stdout);
		return STATUS_DONE;
	}
	if (!strcmp(argv[1], "--version")) {
		puts("pbeamctl " PBEAM_VERSION);
		return STATUS_DONE;
	}
	command = command_find(argv[1]);
	if (!command)
		return command_misused(NULL, "%s: unknown command", argv[1]);
	line.command = command;
	r = command_parse(command, argc - 1, argv + 1, &line);
	if (r < 0)
		r = command->run(&line);
	if ((fflush(stdout) != 0 || ferror(stdout)) && r == STATUS_DONE) {
		fprintf(stderr, "pbeamctl: cannot write to standard output\n");
		r = STATUS_FAILED;
	}
	return r;
}
