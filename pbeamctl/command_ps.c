#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "pbeamctl/client.h"
#include "pbeamctl/command.h"
#include "pbeamctl/format.h"
#include "proto/message.h"

enum { COMMAND_COLUMNS = 60 };

static void ps_print_json(const Pbeam__ProcessList *list)
{
	json_open(NULL, '{');
	json_open("processes", '[');
	for (size_t i = 0; i < list->n_processes; i++) {
		json_open(NULL, '{');
		json_fields(&list->processes[i]->base,
			    "vpid parent=vppid host state threads memory name command job job_name group "
			    "pid=rpid scip started_ns=start_ns");
		json_close('}');
	}
	json_close(']');
	json_close('}');
	json_end();
}

static void print_missing(const Pbeam__ProcessList *list)
{
	for (size_t i = 0; i < list->n_missing; i++)
		fprintf(stderr, "pbeamctl: host %s does not answer; its processes are not listed\n",
			text_visible(list->missing[i]));
}

/* Processes whose migration has an outcome that only the central host knows. */
static void print_undecided(const Pbeam__ProcessList *list)
{
	bool any = false;

	for (size_t i = 0; i < list->n_processes; i++)
		any = any || !strcmp(list->processes[i]->state, "undecided");
	if (any)
		fputs("pbeamctl: an undecided process is frozen until the central host answers, which alone "
		      "knows the outcome of its migration; see `pbeamctl hosts`\n",
		      stderr);
}

static void ps_print_table(const Pbeam__ProcessList *list)
{
	char memory[16];

	format_heading("   VPID  PARENT HOST         STATE     THREADS  MEMORY NAME             COMMAND");
	for (size_t i = 0; i < list->n_processes; i++) {
		const Pbeam__ProcessInfo *p = list->processes[i];

		format_size(p->memory, memory);
		printf("%7d %7d %-12.12s %-9s %7u %7s %-16s ", p->vpid, p->vppid, text_visible(p->host),
		       text_visible(p->state), p->threads, memory, text_visible(p->name));
		format_text(p->command, COMMAND_COLUMNS);
		putchar('\n');
	}
}

static int ps_run(const struct command_line *line)
{
	struct err err = ERR_INIT;
	Pbeam__ProcessList *list;

	if (client_ask(PBEAM__DAEMON_REQUEST__DAEMON_PS, NULL, &pbeam__process_list__descriptor, &list,
		       &err) < 0)
		return command_failed(&err);
	if (command_flag(line, "json"))
		ps_print_json(list);
	else
		ps_print_table(list);
	print_missing(list);
	print_undecided(list);
	message_free(list);
	return STATUS_DONE;
}

static const struct command_option ps_options[] = {
	{"json", 0, NULL, "one JSON document: {\"processes\": [...]}, memory in bytes", NULL},
	{NULL, 0, NULL, NULL, NULL},
};

const struct command ps_command = {
	.name = "ps",
	.synopsis = "[--json]",
	.summary = "list the processes of the name space",
	.text = "Lists every process of the name space: vpid, parent, host, state, number of\n"
		"threads, resident memory, and name (for the first process of a job, the one\n"
		"given with --name).",
	.options = ps_options,
	.words = WORDS_NONE,
	.run = ps_run,
};
