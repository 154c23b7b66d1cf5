/*
 * Rolls back a job that has ended: verifies its image, ends what is left of the job, and starts it again by
 * `scip restore -d`, with the streams in the image and none of the daemon's.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "base/log.h"
#include "image/file_guard.h"
#include "image/file_undo.h"
#include "image/image.h"
#include "pbeamd/services/process_requests.h"
#include "pbeamd/services/target.h"
#include "pbeamd/transport/server.h"
#include "pbeamd/transport/worker.h"
#include "proto/daemon.h"
#include "proto/message.h"
#include "proto/rpc.h"

enum { LOOK_EVERY_NS = 5000000, GONE_WITHIN_S = 10 };

static int revive_verify(const struct revive *revive, uint32_t *processes, struct err *err)
{
	struct image_reader *image;
	int r = image_reader_open(&image, revive->path, err);

	if (r < 0)
		return r;
	*processes = (uint32_t)image_reader_manifest(image)->n_processes;
	/* `scip restore` verifies it before anything is touched: it is enough where nothing is there to lose.
	 */
	r = revive->target.live ? image_reader_verify(image, err) : 0;
	image_reader_close(image);
	return r;
}

static void kill_leftovers(struct server *server, struct rpid keeper)
{
	auto_free struct name_process *list = NULL;
	int n = names_snapshot(server->names, keeper, &list);

	for (int i = 0; i < n; i++)
		if (list[i].rpid.n > 1)
			kill(list[i].rpid.n, SIGKILL);
}

/* The job's first process has ended; its keeper follows when the last of the job has. */
static int wait_for_keeper(struct server *server, const struct target *target, struct err *err)
{
	uint64_t until = io_now_ns(CLOCK_MONOTONIC) + GONE_WITHIN_S * 1000000000ull;
	struct timespec step = {0, LOOK_EVERY_NS};
	struct name_job job;

	for (;;) {
		struct name_process root;
		int r = names_job_count(server->names); /* removes those whose keeper has ended */

		if (r >= 0)
			r = names_job_get(server->names, target->job.keeper, &job);
		if (r == -ENOENT)
			return 0;
		if (r < 0)
			return names_explain(server->names, r, err);
		if (io_now_ns(CLOCK_MONOTONIC) > until)
			return err_set(err, -EBUSY,
				       "%s: it is ending but does not come to its end; try again",
				       target->who);
		if (names_process_get(server->names, job.root, &root) == -ENOENT)
			kill_leftovers(server, job.keeper);
		nanosleep(&step, NULL);
	}
}

static _Noreturn void revive_execute_scip(const char *scip, const struct revive *revive, int out, int err)
{
	int null = open("/dev/null", O_RDONLY);

	dup2(null, STDIN_FILENO);
	dup2(out, STDOUT_FILENO);
	dup2(err, STDERR_FILENO);
	close_range(3, ~0u, 0);
	if (revive->force)
		execl(scip, "scip", "restore", "-d", "--image-streams", "--force", "--", revive->path,
		      (char *)NULL);
	else
		execl(scip, "scip", "restore", "-d", "--image-streams", "--", revive->path, (char *)NULL);
	_exit(127);
}

/* The present content of the pipe, as text, without waiting for other holders of its other end. */
static void revive_read_text(int fd, char *text, size_t size)
{
	ssize_t n;

	fcntl(fd, F_SETFL, O_NONBLOCK);
	n = read(fd, text, size - 1);
	text[n < 0 ? 0 : n] = 0;
}

static const char *skip_program_name(const char *line)
{
	return strncmp(line, "scip: ", 6) == 0 ? line + 6 : line;
}

/* What scip reports about the job's streams. */
static void take_notes(char *text, Pbeam__RollbackReply *done)
{
	char *rest = NULL;

	for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest))
		if (message_append_string(&done->notes, &done->n_notes, skip_program_name(line)) < 0)
			return;
}

/* Runs scip to the point where the job runs. Returns its vpid, with notes for the user in `done`, or -errno.
 */
static int revive_start_scip(const struct revive *revive, Pbeam__RollbackReply *done, struct err *err)
{
	auto_close int out_read = -1, out_write = -1, err_read = -1, err_write = -1;
	char scip[PATH_MAX], text[3 * PATH_MAX];
	int out[2], error[2], status, r;
	pid_t child;

	r = daemon_find_program("scip", scip, sizeof(scip), err);
	if (r < 0)
		return r;
	if (pipe2(out, O_CLOEXEC) < 0)
		return err_sys(err, "start scip");
	out_read = out[0];
	out_write = out[1];
	if (pipe2(error, O_CLOEXEC) < 0)
		return err_sys(err, "start scip");
	err_read = error[0];
	err_write = error[1];
	child = fork();
	if (child < 0)
		return err_sys(err, "start scip");
	if (child == 0)
		revive_execute_scip(scip, revive, out_write, err_write);
	while (waitpid(child, &status, 0) < 0)
		if (errno != EINTR)
			return err_sys(err, "wait for scip");
	if (WIFEXITED(status) && WEXITSTATUS(status) == 0) {
		revive_read_text(err_read, text, sizeof(text));
		take_notes(text, done);
		revive_read_text(out_read, text, sizeof(text));
		return atoi(text) > 0 ? atoi(text) : err_set(err, -EPROTO, "scip restore reported no vpid");
	}
	revive_read_text(err_read, text, sizeof(text));
	text[strcspn(text, "\n")] = 0;
	return err_set(err, -EIO, "%s", text[0] ? skip_program_name(text) : "scip restore was killed");
}

/* What `scip restore` would do to the files. */
static int revive_forecast(const struct revive *revive, Pbeam__RollbackReply *done, struct err *err)
{
	struct file_undo *undo;
	struct image_reader *image;
	int r = image_reader_open(&image, revive->path, err);

	if (r < 0)
		return r;
	r = image_reader_verify(image, err);
	if (r == 0)
		r = file_undo_open(&undo, image, 0, err);
	if (r == 0) {
		r = file_undo_add_all(undo, image_reader_manifest(image), err);
		if (r == 0 && file_undo_list_fates(undo, &done->files, &done->n_files) < 0)
			r = err_code(err, -ENOMEM, "list the files");
		if (r == 0)
			r = file_guard_mark(revive->path, done->files, done->n_files, err);
		file_undo_close(undo);
	}
	image_reader_close(image);
	return r;
}

static void revive_tell_forecast(int sock, const struct revive *revive)
{
	Pbeam__RollbackReply *done = message_new(&pbeam__rollback_reply__descriptor);
	struct err err = ERR_INIT;
	int r = done ? revive_forecast(revive, done, &err) : err_code(&err, -ENOMEM, "list the files");

	if (r == 0 && message_string(&done->path, revive->path) < 0)
		r = err_code(&err, -ENOMEM, "list the files");
	if (r < 0) {
		err_wrap(&err, r, "%s", revive->target.who);
		rpc_refuse(sock, &err);
	} else if (rpc_reply(sock, &done->base, &err) < 0) {
		log_info("list of files: %s", err.text);
	}
	message_free(done);
}

void revive_work(struct server *server, int sock, const void *arg)
{
	const struct revive *revive = arg;
	Pbeam__RollbackReply done = PBEAM__ROLLBACK_REPLY__INIT;
	uint64_t start = io_now_ns(CLOCK_MONOTONIC);
	struct err err = ERR_INIT;
	uint32_t processes = 0;
	int r;

	if (revive->dry_run) {
		revive_tell_forecast(sock, revive);
		return;
	}
	r = revive_verify(revive, &processes, &err);
	if (r == 0 && revive->target.live)
		r = wait_for_keeper(server, &revive->target, &err);
	if (r == 0)
		r = revive_start_scip(revive, &done, &err);
	if (r < 0) {
		if (strncmp(err.text, "vpid ", 5) != 0)
			err_wrap(&err, r, "%s", revive->target.who);
		rpc_refuse(sock, &err);
		return;
	}
	done.vpid = r;
	done.path = (char *)(uintptr_t)revive->path;
	done.total_ns = io_now_ns(CLOCK_MONOTONIC) - start;
	done.processes = processes;
	if (rpc_reply(sock, &done.base, &err) < 0)
		log_info("rolled back, but the client has left: %s", err.text);
	for (size_t i = 0; i < done.n_notes; i++)
		free(done.notes[i]);
	free(done.notes);
}
