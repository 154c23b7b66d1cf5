/*
 * The table of subcommands. One row drives dispatch, option parsing, --help and shell completion. Each
 * subcommand has a file of its own, named after it, with its row at the end.
 */
#ifndef PBEAMCTL_COMMAND_H
#define PBEAMCTL_COMMAND_H

#include <stdbool.h>
#include <stdio.h>

#include "base/err.h"

enum {
	STATUS_DONE = 0,
	STATUS_FAILED = 1,
	STATUS_USAGE = 2,
	STATUS_INCOMPLETE = 3, /* a checkpoint was made that could not be rolled back to now */
	COMMAND_OPTIONS_MAX = 12,
	COMMAND_GIVEN_MAX = 64
};

struct command_option {
	const char *name;     /* "output": --output; NULL ends the list */
	char letter;	      /* 'o': -o; 0 for none */
	const char *argument; /* "FILE", or NULL for a flag */
	const char *help;
	const char *choices; /* "stop cow": values for shell completion; NULL for none */
};

enum command_words { WORDS_NONE, WORDS_TARGET, WORDS_FILES, WORDS_TARGET_OR_FILE };

/* The parsed command line of one invocation. */
struct command_line {
	const struct command *command;
	const char *values[COMMAND_OPTIONS_MAX]; /* by option index; NULL: absent, "": a flag that is set */
	/* Every option given, in the order of the command line. */
	struct {
		int option;
		const char *value;
	} given[COMMAND_GIVEN_MAX];
	int ngiven;
	char **words;
	int nwords;
};

struct command {
	const char *name;
	const char *synopsis; /* after "pbeamctl NAME " */
	const char *summary;  /* one line */
	const char *text;     /* the rest of --help */
	const struct command_option *options;
	enum command_words words; /* their kind, for completion */
	int least, most;	  /* number of words accepted */
	int (*run)(const struct command_line *line);
};

extern const struct command *const command_table[];
extern const struct command_option command_no_options[];

/* The value of an option: NULL if it is absent, "" for a flag. Of a repeated option, the last. */
const char *command_value(const struct command_line *line, const char *name);
/* The `nth` value, from 0, of an option that may be repeated; NULL after the last. */
const char *command_repeated(const struct command_line *line, const char *name, int nth);
bool command_flag(const struct command_line *line, const char *name);

/* Parses the command line and runs the subcommand. Returns the exit status. */
int command_main(int argc, char **argv);

/* Prints "pbeamctl: MESSAGE" on standard error; returns STATUS_FAILED. */
int command_failed(const struct err *err);
/* Prints "pbeamctl COMMAND: MESSAGE" and a hint at --help; returns STATUS_USAGE. */
int command_misused(const struct command *command, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));

extern const struct command ps_command, checkpoint_command, log_command, rollback_command, migrate_command,
	kill_command, upgrade_command, attach_command, stack_command, image_command, hosts_command,
	doctor_command, completion_command;

#endif
