
#include "pbeamctl/command.h"

static void print_words(FILE *out, const struct command *command)
{
	for (const struct command_option *o = command->options; o->name; o++) {
		fprintf(out, " --%s", o->name);
		if (o->letter)
			fprintf(out, " -%c", o->letter);
	}
	fputs(" --help", out);
}

/* Completions of option arguments, such as that of --mode. */
static void print_values(FILE *out, const struct command *command)
{
	for (const struct command_option *o = command->options; o->name; o++) {
		if (!o->argument)
			continue;
		fprintf(out, "\t%s:--%s", command->name, o->name);
		if (o->letter)
			fprintf(out, "|%s:-%c", command->name, o->letter);
		if (o->choices)
			fprintf(out, ") COMPREPLY=($(compgen -W '%s' -- \"$word\")); return ;;\n",
				o->choices);
		else
			fputs(") COMPREPLY=($(compgen -f -- \"$word\")); return ;;\n", out);
	}
}

static const char *completion_function(enum command_words words)
{
	switch (words) {
	case WORDS_TARGET:
		return "compgen -W \"$(_pbeamctl_targets)\"";
	case WORDS_FILES:
		return "compgen -f";
	case WORDS_TARGET_OR_FILE:
		return "compgen -f -W \"$(_pbeamctl_targets)\"";
	case WORDS_NONE:
		break;
	}
	return NULL;
}

static void print_script(FILE *out)
{
	fputs("# bash completion for pbeamctl: source <(pbeamctl completion)\n"
	      "_pbeamctl_targets() {\n"
	      "\tpbeamctl ps 2>/dev/null | awk 'NR > 1 { print $1; print $7 }'\n"
	      "}\n"
	      "_pbeamctl() {\n"
	      "\tlocal word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} "
	      "command=${COMP_WORDS[1]}\n"
	      "\tif ((COMP_CWORD == 1)); then\n"
	      "\t\tCOMPREPLY=($(compgen -W '",
	      out);
	for (int i = 0; command_table[i]; i++)
		fprintf(out, "%s ", command_table[i]->name);
	fputs("--help --version' -- \"$word\"))\n\t\treturn\n\tfi\n\tcase $command:$before in\n", out);
	for (int i = 0; command_table[i]; i++)
		print_values(out, command_table[i]);
	fputs("\tesac\n\tcase $command in\n", out);
	for (int i = 0; command_table[i]; i++) {
		const char *words = completion_function(command_table[i]->words);

		fprintf(out, "\t%s)\n\t\tif [[ $word == -* ]]; then COMPREPLY=($(compgen -W '",
			command_table[i]->name);
		print_words(out, command_table[i]);
		fputs("' -- \"$word\"))\n", out);
		if (words)
			fprintf(out, "\t\telse COMPREPLY=($(%s -- \"$word\"))\n", words);
		fputs("\t\tfi ;;\n", out);
	}
	fputs("\tesac\n}\ncomplete -F _pbeamctl pbeamctl\n", out);
}

static int completion_run(const struct command_line *line)
{
	print_script(stdout);
	return STATUS_DONE;
}

const struct command completion_command = {
	.name = "completion",
	.synopsis = "",
	.summary = "print the completion script for bash",
	.text = "Prints a script that completes commands, options, vpids and names in bash:\n"
		"source <(pbeamctl completion)",
	.options = command_no_options,
	.words = WORDS_NONE,
	.run = completion_run,
};
