#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/parse.h"
#include "pbeamctl/client.h"
#include "pbeamctl/command.h"
#include "pbeamctl/format.h"

enum { MAPS_MAX = 64 };

/* "A=B,C=D" as a list of its pieces, cut in place. */
static size_t split(char *text, char **pieces)
{
	size_t n = 0;
	char *rest = NULL;

	for (char *piece = strtok_r(text, ",", &rest); piece && n < MAPS_MAX;
	     piece = strtok_r(NULL, ",", &rest))
		pieces[n++] = piece;
	return n;
}

/* N, N@HOST or a file; `place` has the text. NULL: the newest. */
static void take_image(const char *to, char place[PATH_MAX], Pbeam__RollbackRequest *request)
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

static int run(const struct command_line *line)
{
	Pbeam__RollbackRequest request = PBEAM__ROLLBACK_REQUEST__INIT;
	const Pbeam__RollbackReply *done;
	const char *to = command_value(line, "to"), *on = command_value(line, "on");
	char *maps[MAPS_MAX], text[4096];
	struct err err = ERR_INIT;
	Pbeam__Target target;
	ProtobufCMessage *reply;
	char cwd[PATH_MAX], total[24], place[PATH_MAX];

	client_target(line->words[0], &target);
	request.target = &target;
	request.force = command_flag(line, "force");
	if (to && !*to)
		return command_misused(line->command, "--to needs the number of a checkpoint or an image");
	take_image(to, place, &request);
	if (getcwd(cwd, sizeof(cwd)))
		request.cwd = cwd;
	if (on && (snprintf(text, sizeof(text), "%s", on) >= (int)sizeof(text) || !strchr(on, '=')))
		return command_misused(line->command, "--on %s: it is HOST=HOST, or several with commas", on);
	request.n_on = on ? split(text, maps) : 0;
	request.on = maps;
	if (client_ask(PBEAM__DAEMON_REQUEST__DAEMON_ROLLBACK, &request.base,
		       &pbeam__rollback_reply__descriptor, &reply, &err) < 0)
		return command_failed(&err);
	done = (const Pbeam__RollbackReply *)reply;
	for (size_t i = 0; i < done->n_notes; i++)
		fprintf(stderr, "pbeamctl: %s\n", done->notes[i]);
	if (isatty(STDERR_FILENO)) {
		format_span(done->total_ns, total);
		fprintf(stderr, "vpid %d runs again as in %s, after %s\n", done->vpid, done->path, total);
	}
	protobuf_c_message_free_unpacked(reply, NULL);
	return STATUS_DONE;
}

static const struct command_option options[] = {
	{"to", 0, "N|FILE", "checkpoint number N, or N@HOST, as `pbeamctl log` lists it, or this image",
	 NULL},
	{"on", 0, "HOST=HOST",
	 "of several parts: what was on the first host goes to the second, also beside another part", NULL},
	{"force", 0, NULL, "go on although files cannot be put back as they were", NULL},
	{NULL, 0, NULL, NULL, NULL},
};

const struct command rollback_command = {
	.name = "rollback",
	.synopsis = "[--to N|FILE] [--on HOST=HOST[,...]] [--force] VPID|NAME",
	.summary = "replace the running processes by the state of a checkpoint",
	.text = "Replaces the running processes by the state of the newest checkpoint, or of the one that "
		"--to\n"
		"names; the console stays. A job that has ended, or that was ended by `checkpoint --kill`, "
		"is started\n"
		"anew. If the image does not verify, or anything else speaks against it, nothing is touched.",
	.options = options,
	.words = WORDS_TARGET,
	.least = 1,
	.most = 1,
	.run = run,
};
