#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/parse.h"
#include "base/text.h"
#include "pbeamctl/client.h"
#include "pbeamctl/command.h"
#include "pbeamctl/migrate_all.h"
#include "proto/message.h"

/* Returns -1 to continue, or the exit status. */
static int migrate_parse_limits(const struct command_line *line, Pbeam__MigrateRequest *request)
{
	const char *pause = command_value(line, "max-pause"), *rate = command_value(line, "bandwidth");
	struct err err = ERR_INIT;

	if (pause && parse_duration(pause, &request->max_pause_ns, &err) < 0)
		return command_misused(line->command, "--max-pause: %s", err.text);
	if (rate && parse_size(rate, &request->bandwidth, &err) < 0)
		return command_misused(line->command, "--bandwidth: %s", err.text);
	return -1;
}

/* Returns -1 to continue, or the exit status. */
static int migrate_parse_maps(const struct command_line *line, Pbeam__MigrateRequest *request, char *maps[])
{
	const char *map;

	while ((map = command_repeated(line, "map", (int)request->n_maps)) != NULL) {
		const char *equals = strchr(map, '=');

		if (map[0] != '/' || !equals || equals[1] != '/')
			return command_misused(line->command,
					       "--map: `%s` is not FROM=TO with two absolute paths", map);
		maps[request->n_maps++] = (char *)(uintptr_t)map;
	}
	request->maps = maps;
	return -1;
}

static int show_dry_run(const Pbeam__MigrateReply *done)
{
	for (size_t i = 0; i < done->n_obstacles; i++)
		printf("%s\n", text_visible(done->obstacles[i]));
	if (!done->n_obstacles)
		fprintf(stderr, "vpid %d can go to %s\n", done->vpid, text_visible(done->host));
	client_print_notes(done->notes, done->n_notes);
	return done->n_obstacles ? STATUS_FAILED : STATUS_DONE;
}

static int migrate_cancel(const struct command_line *line)
{
	Pbeam__Target target;

	client_target(line->words[0], &target);
	return client_command(PBEAM__DAEMON_REQUEST__DAEMON_CANCEL, &target.base);
}

static int migrate_run(const struct command_line *line)
{
	Pbeam__MigrateRequest request = PBEAM__MIGRATE_REQUEST__INIT;
	Pbeam__Target target;
	Pbeam__MigrateReply *done;
	const char *from = command_value(line, "all-from");
	char *maps[COMMAND_GIVEN_MAX];
	struct err err = ERR_INIT;
	int r = migrate_parse_limits(line, &request);

	if (r < 0)
		r = migrate_parse_maps(line, &request, maps);
	if (r >= 0)
		return r;
	if (command_flag(line, "cancel"))
		return migrate_cancel(line);
	if (line->nwords != (from ? 1 : 2))
		return command_misused(line->command, "%s",
				       from && line->nwords ? "--all-from takes no VPID"
							    : "missing destination host");
	if (from && (command_flag(line, "dry-run") || command_flag(line, "alone")))
		return command_misused(line->command, "--all-from excludes --alone and --dry-run");
	request.host = line->words[line->nwords - 1];
	request.alone = command_flag(line, "alone");
	request.dry_run = command_flag(line, "dry-run");
	request.send_files = command_flag(line, "send-files");
	request.leave_shared = command_flag(line, "leave-shared");
	if (from)
		return migrate_all(&request, from);
	client_target(line->words[0], &target);
	request.target = &target;
	if (client_ask(PBEAM__DAEMON_REQUEST__DAEMON_MIGRATE, &request.base,
		       &pbeam__migrate_reply__descriptor, &done, &err) < 0)
		return command_failed(&err);
	r = STATUS_DONE;
	if (request.dry_run)
		r = show_dry_run(done);
	else
		migrate_print(done);
	message_free(done);
	return r;
}

static const struct command_option migrate_options[] = {
	{"alone", 0, NULL, "move the process without its descendants", NULL},
	{"dry-run", 0, NULL, "move nothing, list the obstacles", NULL},
	{"max-pause", 0, "TIME", "longest acceptable pause (100ms)", NULL},
	{"bandwidth", 0, "RATE", "send at most RATE bytes a second", NULL},
	{"map", 0, "FROM=TO", "FROM is at TO on the destination; may be repeated", NULL},
	{"send-files", 0, NULL, "also move the files that it writes and that exist only here", NULL},
	{"leave-shared", 0, NULL, "close what a process that stays has open as well", NULL},
	{"all-from", 0, "HOST", "move everything off HOST, list what cannot move or depends on it", NULL},
	{"cancel", 0, NULL, "cancel the migration in progress", NULL},
	{NULL, 0, NULL, NULL, NULL},
};

const struct command migrate_command = {
	.name = "migrate",
	.synopsis = "[--alone] [--dry-run] [--max-pause TIME] [--bandwidth RATE] [--map FROM=TO]... "
		    "[--send-files] [--leave-shared] VPID|NAME HOST | "
		    "--all-from HOST HOST | --cancel VPID|NAME",
	.summary = "move a running process and its descendants to another host",
	.text = "Moves the process and its descendants, and returns when they run on HOST. The\n"
		"console stays where it is. Until the moment of the switch a failure, or Ctrl-C,\n"
		"leaves the program where it was.",
	.options = migrate_options,
	.words = WORDS_TARGET,
	.least = 1,
	.most = 2,
	.run = migrate_run,
};
