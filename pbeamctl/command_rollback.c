#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/parse.h"
#include "base/text.h"
#include "pbeamctl/client.h"
#include "pbeamctl/command.h"
#include "pbeamctl/format.h"
#include "proto/message.h"

enum { MAPS_MAX = 64 };

/* Splits "A=B,C=D" at the commas, in place. */
static size_t split_maps(char *text, char **pieces)
{
	size_t n = 0;
	char *rest = NULL;

	for (char *piece = strtok_r(text, ",", &rest); piece && n < MAPS_MAX;
	     piece = strtok_r(NULL, ",", &rest))
		pieces[n++] = piece;
	return n;
}

/* Parses N, N@HOST or a file name; NULL is the newest checkpoint. `place` holds the text. */
static void parse_image(const char *to, char place[PATH_MAX], Pbeam__RollbackRequest *request)
{
	char *host;
	uint64_t number;

	if (!to)
		return;
	snprintf(place, PATH_MAX, "%s", to);
	host = strchr(place, '@');
	if (host)
		*host++ = 0;
	if (parse_number(place, 1, UINT32_MAX, &number, NULL) < 0 || (host && !*host)) {
		request->path = (char *)(uintptr_t)to;
		return;
	}
	request->number = (uint32_t)number;
	if (host)
		request->host = host;
}

static void print_fates(const Pbeam__RollbackReply *done, bool json)
{
	if (json) {
		json_open(NULL, '{');
		json_string("path", done->path);
		json_open("files", '[');
	} else {
		format_heading("FATE         BYTES    BEFORE     AFTER FILE");
	}
	for (size_t i = 0; i < done->n_files; i++) {
		const Pbeam__FileFate *fate = done->files[i];
		char bytes[16], before[16], after[16];

		if (json) {
			json_open(NULL, '{');
			json_fields(&fate->base, "path fate bytes before size foreign");
			json_close('}');
			continue;
		}
		format_size(fate->bytes, bytes);
		format_size(fate->before, before);
		format_size(fate->size, after);
		printf("%-9s %8s %9s %9s ", text_visible(fate->fate), bytes, before, after);
		format_text(fate->path, -1);
		if (fate->foreign)
			printf(" (written by others since the job ended: requires --force)");
		putchar('\n');
	}
	if (json) {
		json_close(']');
		json_close('}');
		json_end();
	}
}

static int command_rollback_run(const struct command_line *line)
{
	Pbeam__RollbackRequest request = PBEAM__ROLLBACK_REQUEST__INIT;
	Pbeam__RollbackReply *done;
	const char *to = command_value(line, "to"), *on = command_value(line, "on");
	char *maps[MAPS_MAX], text[4096];
	struct err err = ERR_INIT;
	Pbeam__Target target;
	char cwd[PATH_MAX], total[24], place[PATH_MAX];

	client_target(line->words[0], &target);
	request.target = &target;
	request.force = command_flag(line, "force");
	request.replace = command_flag(line, "replace");
	request.dry_run = command_flag(line, "dry-run");
	if (command_flag(line, "json") && !request.dry_run)
		return command_misused(line->command, "--json requires --dry-run");
	if (to && !*to)
		return command_misused(line->command,
				       "--to requires the number of a checkpoint, or an image");
	parse_image(to, place, &request);
	if (getcwd(cwd, sizeof(cwd)))
		request.cwd = cwd;
	if (on && (snprintf(text, sizeof(text), "%s", on) >= (int)sizeof(text) || !strchr(on, '=')))
		return command_misused(line->command,
				       "--on %s: must be HOST=HOST, or several separated by commas", on);
	request.n_on = on ? split_maps(text, maps) : 0;
	request.on = maps;
	if (client_ask(PBEAM__DAEMON_REQUEST__DAEMON_ROLLBACK, &request.base,
		       &pbeam__rollback_reply__descriptor, &done, &err) < 0)
		return command_failed(&err);
	client_print_notes(done->notes, done->n_notes);
	if (request.dry_run) {
		print_fates(done, command_flag(line, "json"));
		message_free(done);
		return STATUS_DONE;
	}
	if (isatty(STDERR_FILENO)) {
		format_span(done->total_ns, total);
		fprintf(stderr, "vpid %d runs again as in %s, after %s\n", done->vpid,
			text_visible(done->path), total);
	}
	message_free(done);
	return STATUS_DONE;
}

static const struct command_option rollback_options[] = {
	{"to", 0, "N|FILE", "roll back to checkpoint N (or N@HOST) of `pbeamctl log`, or to this image",
	 NULL},
	{"on", 0, "HOST=HOST", "restore on the second host what was on the first", NULL},
	{"force", 0, NULL, "continue although files cannot be restored as they were", NULL},
	{"replace", 0, NULL, "end the old processes first: for a lack of memory; a failure loses them", NULL},
	{"dry-run", 0, NULL, "only list the files of the image with what would happen to each", NULL},
	{"json", 0, NULL, "with --dry-run: one JSON document, {\"files\": [...]}", NULL},
	{NULL, 0, NULL, NULL, NULL},
};

const struct command rollback_command = {
	.name = "rollback",
	.synopsis =
		"[--to N|FILE] [--on HOST=HOST[,...]] [--force] [--replace] [--dry-run [--json]] VPID|NAME",
	.summary = "replace the running processes with those of a checkpoint",
	.text = "Replaces the running processes with those of the newest checkpoint, or of the\n"
		"one that --to names. The console stays. A job that has ended, or that\n"
		"`checkpoint --kill` has ended, is started again. If the image is damaged or\n"
		"cannot be restored here, nothing changes.\n\n"
		"Files that the program had open or mapped at the checkpoint get their contents\n"
		"of then; --dry-run lists them. Files that it opens and closes by name are left\n"
		"as they are.",
	.options = rollback_options,
	.words = WORDS_TARGET,
	.least = 1,
	.most = 1,
	.run = command_rollback_run,
};
