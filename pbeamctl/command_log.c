#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/text.h"
#include "pbeamctl/client.h"
#include "pbeamctl/command.h"
#include "pbeamctl/format.h"
#include "proto/message.h"

enum { HOST_COLUMNS = 12 };

static void log_print_json(const Pbeam__CheckpointLog *list)
{
	json_open(NULL, '{');
	json_open("checkpoints", '[');
	for (size_t i = 0; i < list->n_entries; i++) {
		const Pbeam__LogEntry *e = list->entries[i];

		json_open(NULL, '{');
		json_fields(&e->base, "number to");
		json_string("path", e->copies[0]->path);
		json_open("hosts", '[');
		for (size_t k = 0; k < e->n_copies; k++)
			json_string(NULL, e->copies[k]->host);
		json_close(']');
		json_fields(&e->base, "created_ns bytes pause_ns processes problem incomplete track");
		json_close('}');
	}
	json_close(']');
	json_close('}');
	json_end();
}

/* True if some are not on the local host. */
static bool log_is_elsewhere(const Pbeam__CheckpointLog *list)
{
	for (size_t i = 0; i < list->n_entries; i++)
		if (strcmp(list->entries[i]->copies[0]->host, list->here) != 0)
			return true;
	return false;
}

static void print_hosts(const Pbeam__LogEntry *e)
{
	int width = 0;

	for (size_t k = 0; k < e->n_copies; k++)
		width += printf("%s%s", k ? "," : "", text_visible(e->copies[k]->host));
	printf("%*s", width < HOST_COLUMNS ? HOST_COLUMNS - width + 1 : 1, "");
}

static void log_print_table(const Pbeam__CheckpointLog *list)
{
	bool elsewhere = log_is_elsewhere(list);

	format_heading(elsewhere ? "  N WHEN                   SIZE      PAUSE PROCESSES HOST         IMAGE"
				 : "  N WHEN                   SIZE      PAUSE PROCESSES IMAGE");
	for (size_t i = 0; i < list->n_entries; i++) {
		const Pbeam__LogEntry *e = list->entries[i];
		char when[32], size[16], pause[24], number[16];

		format_time(e->created_ns, when);
		format_size(e->bytes, size);
		format_span(e->pause_ns, pause);
		snprintf(number, sizeof(number), "(%u)", e->number);
		printf("%3s %-19s %7s ", e->to[0] ? text_visible(e->to) : number, when, size);
		if (e->problem[0])
			printf("%10s %9s ", "-", "-");
		else
			printf("%10s %9u ", pause, e->processes);
		if (elsewhere)
			print_hosts(e);
		format_text(e->copies[0]->path, -1);
		if (e->problem[0]) {
			printf(" (damaged: ");
			format_text(e->problem, -1);
			putchar(')');
		}
		for (size_t k = 0; k < e->n_incomplete; k++) {
			printf(k ? "; " : " (incomplete: ");
			format_text(e->incomplete[k], -1);
		}
		if (e->n_incomplete)
			putchar(')');
		for (size_t k = 0; k < e->n_track; k++) {
			printf(k ? ", " : " (tracks ");
			format_text(e->track[k], -1);
		}
		if (e->n_track)
			putchar(')');
		putchar('\n');
	}
}

static int log_run(const struct command_line *line)
{
	struct err err = ERR_INIT;
	Pbeam__Target target;
	Pbeam__CheckpointLog *list;

	client_target(line->words[0], &target);
	if (client_ask(PBEAM__DAEMON_REQUEST__DAEMON_LOG, &target.base, &pbeam__checkpoint_log__descriptor,
		       &list, &err) < 0)
		return command_failed(&err);
	if (command_flag(line, "json"))
		log_print_json(list);
	else
		log_print_table(list);
	if (log_is_elsewhere(list) && isatty(STDERR_FILENO))
		fputs("`pbeamctl rollback --to` works from here; run `pbeamctl image` on the host that has "
		      "the image\n",
		      stderr);
	client_print_notes(list->notes, list->n_notes);
	message_free(list);
	return STATUS_DONE;
}

static const struct command_option log_options[] = {
	{"json", 0, NULL, "one JSON document: {\"checkpoints\": [...]}", NULL},
	{NULL, 0, NULL, NULL, NULL},
};

const struct command log_command = {
	.name = "log",
	.synopsis = "[--json] VPID|NAME",
	.summary = "list the checkpoints of a job",
	.text = "Lists the numbered checkpoints of a job, also of one that has ended, on all\n"
		"hosts that answer. The first column is the argument for `rollback --to`: the\n"
		"number, or NUMBER@HOST for another host's. A number in parentheses cannot be\n"
		"rolled back to at present. A damaged image is listed with the reason, and so is\n"
		"an incomplete one, to which a rollback was impossible when it was made. A\n"
		"rollback changes the files that the program had open, not those that it opens\n"
		"and closes by name, unless the line says `tracks DIR` (scip run --track).",
	.options = log_options,
	.words = WORDS_TARGET,
	.least = 1,
	.most = 1,
	.run = log_run,
};
