/* `pbeamctl doctor IMAGE`: what would prevent the restore of an image here. scip makes the checks. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/text.h"
#include "pbeamctl/client.h"
#include "pbeamctl/command.h"
#include "pbeamctl/doctor.h"
#include "pbeamctl/format.h"
#include "proto/daemon.h"

/* Starts scip with its standard output in a pipe. Returns the stream to read, or NULL. */
static FILE *start_check(const char *path, pid_t *child, struct err *err)
{
	char scip[PATH_MAX];
	int ends[2];
	FILE *out;

	if (daemon_find_program("scip", scip, sizeof(scip), err) < 0)
		return NULL;
	if (pipe(ends) < 0) {
		err_set(err, -errno, "make a pipe: %s", strerror(errno));
		return NULL;
	}
	fflush(stdout);
	*child = fork();
	if (*child == 0) {
		dup2(ends[1], STDOUT_FILENO);
		close(ends[0]);
		close(ends[1]);
		execl(scip, "scip", "restore", "--check", "--", path, (char *)NULL);
		fprintf(stderr, "pbeamctl: execute %s: %s\n", text_visible(scip), strerror(errno));
		_exit(STATUS_USAGE);
	}
	close(ends[1]);
	out = *child > 0 ? fdopen(ends[0], "r") : NULL;
	if (!out) {
		err_set(err, -errno, "start %s: %s", scip, strerror(errno));
		close(ends[0]);
	}
	return out;
}

int doctor_image(const char *path, bool json)
{
	struct err err = ERR_INIT;
	auto_free char *line = NULL;
	size_t room = 0, n = 0;
	pid_t child;
	FILE *out = start_check(path, &child, &err);
	int status = 0;

	if (!out)
		return command_failed(&err);
	if (json) {
		json_open(NULL, '{');
		json_string("image", path);
		json_open("obstacles", '[');
	}
	for (; getline(&line, &room, out) > 0; n++) {
		line[strcspn(line, "\n")] = '\0';
		if (json)
			json_string(NULL, line);
		else
			puts(text_visible(line));
	}
	fclose(out);
	while (waitpid(child, &status, 0) < 0 && errno == EINTR)
		;
	status = WIFEXITED(status) ? WEXITSTATUS(status) : STATUS_FAILED;
	if (json) {
		json_close(']');
		json_bool("restorable", status == 0);
		json_close('}');
		json_end();
	} else if (status == 0) {
		printf("Nothing prevents a restore of %s here.\n", text_visible(path));
	}
	return status ? STATUS_FAILED : STATUS_DONE;
}
