#include <errno.h>
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

/* Only mode stop is implemented. Returns -1 to continue, or the exit status. */
static int check_mode(const struct command_line *line, const char *mode)
{
	struct err err = ERR_INIT;

	if (!strcmp(mode, "stop"))
		return -1;
	if (strcmp(mode, "cow") != 0 && strcmp(mode, "incremental") != 0)
		return command_misused(line->command, "--mode %s: must be stop, cow or incremental", mode);
	err_set(&err, -ENOTSUP, "%s: this version does not support --mode %s; use --mode stop",
		line->words[0], mode);
	return command_failed(&err);
}

static int command_checkpoint_run(const struct command_line *line)
{
	Pbeam__CheckpointRequest request = PBEAM__CHECKPOINT_REQUEST__INIT;
	Pbeam__Target target;
	Pbeam__CheckpointReply *done;
	const char *output = command_value(line, "output"), *mode = command_value(line, "mode");
	const char *save = command_value(line, "save-files");
	struct err err = ERR_INIT;
	char cwd[PATH_MAX], size[16], pause[24], total[24];
	int r;

	if (mode && (r = check_mode(line, mode)) >= 0)
		return r;
	if (output && !*output)
		return command_misused(line->command, "--output requires the name of a file");
	if (save && parse_size(save, &request.save_files_max, &err) < 0)
		return command_misused(line->command, "--save-files: %s", err.text);
	if (save && !request.save_files_max)
		request.save_files_max = 1; /* in the request, 0 stands for the job's own limit */
	client_target(line->words[0], &target);
	request.target = &target;
	request.output = (char *)(uintptr_t)(output ? output : "");
	request.kill = command_flag(line, "kill");
	request.alone = command_flag(line, "alone");
	request.no_wait = command_flag(line, "no-wait");
	request.mode = (char *)(uintptr_t) "stop";
	if (getcwd(cwd, sizeof(cwd)))
		request.cwd = cwd;
	if (client_ask(PBEAM__DAEMON_REQUEST__DAEMON_CHECKPOINT, &request.base,
		       &pbeam__checkpoint_reply__descriptor, &done, &err) < 0)
		return command_failed(&err);
	format_path(done->path);
	fflush(stdout);
	for (size_t i = 0; i < done->n_outside; i++)
		fprintf(stderr, "pbeamctl: %s, which is outside the checkpoint: a rollback resets it\n",
			text_visible(done->outside[i]));
	if (isatty(STDERR_FILENO) && !request.no_wait) {
		format_size(done->bytes, size);
		format_span(done->pause_ns, pause);
		format_span(done->total_ns, total);
		fflush(stdout);
		fprintf(stderr, "%u process%s, %s, paused for %s, done in %s\n", done->processes,
			done->processes == 1 ? "" : "es", size, pause, total);
	}
	for (size_t i = 0; i < done->n_incomplete; i++)
		fprintf(stderr, "pbeamctl: the checkpoint is incomplete: %s\n",
			text_visible(done->incomplete[i]));
	r = done->n_incomplete ? STATUS_INCOMPLETE : STATUS_DONE;
	message_free(done);
	return r;
}

static const struct command_option checkpoint_options[] = {
	{"output", 'o', "FILE", "write the image to FILE instead of a numbered one of the job", NULL},
	{"kill", 0, NULL, "kill the program once the image is durable", NULL},
	{"alone", 0, NULL, "save the process without its descendants", NULL},
	{"mode", 0, "MODE", "stop: frozen until written (cow, incremental: not implemented)", "stop"},
	{"no-wait", 0, NULL, "return at once; the image appears when it is complete", NULL},
	{"save-files", 0, "SIZE", "save the contents of files open for writing, up to SIZE each", NULL},
	{NULL, 0, NULL, NULL, NULL},
};

const struct command checkpoint_command = {
	.name = "checkpoint",
	.synopsis = "[-o FILE] [--kill] [--alone] [--mode MODE] [--no-wait] [--save-files SIZE] VPID|NAME",
	.summary = "save a process and its descendants to an image",
	.text = "Saves the process and its descendants, prints the image's path as the only line\n"
		"on standard output, and returns when the image is complete and durable. The\n"
		"program continues, also after a failure; a failure leaves earlier images\n"
		"untouched. Exit status 3: the image is there, but no rollback to it is possible\n"
		"as things are; the reason is on standard error.",
	.options = checkpoint_options,
	.words = WORDS_TARGET,
	.least = 1,
	.most = 1,
	.run = command_checkpoint_run,
};
