#include <stdio.h>

#include "pbeamctl/client.h"
#include "pbeamctl/command.h"
#include "pbeamctl/format.h"

static void print_json(const Pbeam__CheckpointLog *list)
{
	json_open('{');
	json_key("checkpoints");
	json_open('[');
	for (size_t i = 0; i < list->n_entries; i++) {
		const Pbeam__LogEntry *e = list->entries[i];

		json_open('{');
		json_key("number");
		json_unsigned(e->number);
		json_key("path");
		json_string(e->path);
		json_key("created_ns");
		json_unsigned(e->created_ns);
		json_key("bytes");
		json_unsigned(e->bytes);
		json_key("pause_ns");
		json_unsigned(e->pause_ns);
		json_key("processes");
		json_unsigned(e->processes);
		json_key("problem");
		json_string(e->problem);
		json_close('}');
	}
	json_close(']');
	json_close('}');
	json_end();
}

static void print_table(const Pbeam__CheckpointLog *list)
{
	format_heading("  N WHEN                   SIZE      PAUSE PROCESSES IMAGE");
	for (size_t i = 0; i < list->n_entries; i++) {
		const Pbeam__LogEntry *e = list->entries[i];
		char when[32], size[16], pause[24];

		format_time(e->created_ns, when);
		format_size(e->bytes, size);
		format_span(e->pause_ns, pause);
		printf("%3u %-19s %7s ", e->number, when, size);
		if (e->problem[0])
			printf("%10s %9s %s (damaged: %s)\n", "-", "-", e->path, e->problem);
		else
			printf("%10s %9u %s\n", pause, e->processes, e->path);
	}
}

static int run(const struct command_line *line)
{
	struct err err = ERR_INIT;
	Pbeam__Target target;
	ProtobufCMessage *reply;

	client_target(line->words[0], &target);
	if (client_ask(PBEAM__DAEMON_REQUEST__DAEMON_LOG, &target.base, &pbeam__checkpoint_log__descriptor,
		       &reply, &err) < 0)
		return command_failed(&err);
	if (command_flag(line, "json"))
		print_json((const Pbeam__CheckpointLog *)reply);
	else
		print_table((const Pbeam__CheckpointLog *)reply);
	protobuf_c_message_free_unpacked(reply, NULL);
	return STATUS_DONE;
}

static const struct command_option options[] = {
	{"json", 0, NULL, "one JSON document: {\"checkpoints\": [...]}", NULL},
	{NULL, 0, NULL, NULL, NULL},
};

const struct command log_command = {
	.name = "log",
	.synopsis = "[--json] VPID|NAME",
	.summary = "its checkpoints: number, when, size, pause",
	.text = "Lists the numbered checkpoints of a job, also of one that has ended. An image that is "
		"damaged is\n"
		"listed with what is wrong with it.",
	.options = options,
	.words = WORDS_TARGET,
	.least = 1,
	.most = 1,
	.run = run,
};
