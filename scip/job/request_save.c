/*
 * Checkpoint and rollback: a coordinator does the work; the request waits for it and shows its progress.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "base/log.h"
#include "image/image.h"
#include "proto/rpc.h"
#include "scip/job/coordinator.h"
#include "scip/job/links.h"
#include "scip/job/requests.h"
#include "scip/tracee/procfs.h"

enum { PROGRESS_NS = 200000000 };

/* A coordinator at work for a request. */
struct saving {
	struct request *request; /* NULL: without a reply */
	struct job *job;
	bool no_wait;
	bool rolls_back, dry_run;
	bool numbered; /* `path` is one of the job's own */
	uint32_t number;
	uint64_t start_ns;
	uint64_t resident; /* bytes of the processes to save, for the progress */
	char path[PATH_MAX];
	char store[STORE_JOB_MAX];
};

static uint64_t job_resident_bytes(const struct job *job)
{
	auto_free struct name_process *list = NULL;
	uint64_t sum = 0;
	int n = names_snapshot(job->names, job->entry.keeper, &list);

	for (int i = 0; i < n; i++)
		sum += procfs_resident(list[i].rpid.n);
	return sum;
}

static void show_progress(void *arg)
{
	struct saving *saving = arg;
	Pbeam__Progress progress = PBEAM__PROGRESS__INIT;
	char temporary[PATH_MAX + 32];
	struct stat st;

	if (!saving->request || saving->request->fd < 0)
		return;
	snprintf(temporary, sizeof(temporary), "%s.tmp-%d", saving->path, (int)saving->job->coordinator_pid);
	progress.phase = (char *)(uintptr_t)(saving->rolls_back ? "restore" : "save");
	progress.total = saving->resident;
	if (!saving->rolls_back && stat(temporary, &st) == 0)
		progress.done = (uint64_t)st.st_blocks * 512;
	if (progress.done > progress.total)
		progress.done = progress.total;
	request_reply(saving->request, PBEAM__RPC__RPC_PROGRESS, &progress.base, NULL, 0);
	if (loop_timer_start(&saving->job->loop, PROGRESS_NS, show_progress, saving) < 0)
		return; /* without an alarm to spare there is no progress to see */
}

/* ---- the end ---- */

static void tell_rollback(const struct saving *saving, const struct coordinator_outcome *outcome)
{
	Pbeam__RollbackReply done = PBEAM__ROLLBACK_REPLY__INIT;

	done.vpid = outcome->root.n;
	done.path = (char *)(uintptr_t)saving->path;
	done.total_ns = io_now_ns(CLOCK_MONOTONIC) - saving->start_ns;
	done.processes = outcome->processes;
	done.n_files = outcome->nfiles;
	done.files = outcome->files;
	request_reply(saving->request, PBEAM__RPC__RPC_REPLY, &done.base, NULL, 0);
}

static void tell_checkpoint(const struct saving *saving, const struct coordinator_outcome *outcome)
{
	Pbeam__CheckpointReply done = PBEAM__CHECKPOINT_REPLY__INIT;

	done.path = (char *)(uintptr_t)saving->path;
	done.number = saving->number;
	if (outcome) {
		done.bytes = outcome->bytes;
		done.pause_ns = outcome->pause_ns;
		done.total_ns = outcome->total_ns;
		done.processes = outcome->processes;
		done.threads = outcome->threads;
		done.n_incomplete = outcome->nobstacles;
		done.incomplete = outcome->obstacles;
	}
	request_reply(saving->request, PBEAM__RPC__RPC_REPLY, &done.base, NULL, 0);
}

static void on_saved(void *arg, const struct coordinator_outcome *outcome)
{
	struct saving *saving = arg;
	struct request *request = saving->request;
	struct job *job = saving->job;
	bool told = saving->no_wait || !request || request->fd < 0;

	loop_timer_stop(&job->loop, show_progress, saving);
	if (outcome->err.code && told)
		log_error("vpid %d: %s", job->entry.root.n, outcome->err.text);
	if (!outcome->err.code && saving->rolls_back && !saving->dry_run)
		links_renew(job, outcome->root, names_real(job->names, outcome->root).n);
	for (size_t i = 0; told && i < outcome->nobstacles; i++)
		log_warn("checkpoint %s is incomplete: %s", saving->path, outcome->obstacles[i]);
	if (!outcome->err.code && saving->numbered)
		store_prune(saving->store, job_keep(job));
	if (told)
		; /* there is no reply */
	else if (outcome->err.code)
		request_refuse(request, &outcome->err);
	else if (saving->rolls_back)
		tell_rollback(saving, outcome);
	else
		tell_checkpoint(saving, outcome);
	free(saving);
	if (request) {
		request->saving = NULL;
		request_idle(request);
	}
}

static void saving_forget_request(struct request *request)
{
	struct saving *saving = request->saving;

	loop_timer_stop(&saving->job->loop, show_progress, saving);
	saving->request = NULL;
	request->saving = NULL;
}

/* ---- the beginning ---- */

/* `path` relative to the directory that the command was given in. */
static int absolute_path(const char *path, const char *cwd, char out[PATH_MAX], struct err *err)
{
	bool relative = path[0] != '/';

	if (relative && (!cwd || cwd[0] != '/'))
		return err_set(err, -EINVAL, "%s is relative, and the request names no directory", path);
	if (snprintf(out, PATH_MAX, "%s%s%s", relative ? cwd : "", relative ? "/" : "", path) >=
	    PATH_MAX - 32)
		return err_code(err, -ENAMETOOLONG, "%s", path);
	return 0;
}

static int choose_output(struct saving *saving, const Pbeam__CheckpointRequest *wish, struct vpid target,
			 struct err *err)
{
	const struct job *job = saving->job;
	struct stat st;
	int r;

	job_store_name(job, target, saving->store);
	saving->numbered = !wish->output || !wish->output[0];
	if (saving->numbered)
		return store_claim(saving->store, job->entry.uuid, saving->path, &saving->number, err);
	r = absolute_path(wish->output, wish->cwd, saving->path, err);
	if (r == 0 && stat(saving->path, &st) == 0 && !S_ISREG(st.st_mode))
		r = err_set(err, -EISDIR, "%s exists and is not a regular file; name a file", saving->path);
	return r;
}

/* The newest image of this run: one of an earlier run of the same name is taken only if its number is given.
 */
static int newest_of_run(const struct job *job, const char *store, char path[PATH_MAX], struct err *err)
{
	auto_free uint32_t *numbers = NULL;
	int n = store_list(store, &numbers, err);

	if (n <= 0)
		return n < 0 ? n : store_find(store, 0, path, err);
	while (n-- > 0) {
		struct image_reader *image;
		const Pbeam__Manifest *manifest;
		int r = store_find(store, numbers[n], path, err);
		bool ours;

		if (r == 0)
			r = image_reader_open(&image, path, err);
		if (r < 0)
			return r;
		manifest = image_reader_manifest(image);
		ours = !job->entry.uuid[0] || !manifest->job || !manifest->job->uuid ||
		       !manifest->job->uuid[0] || !strcmp(manifest->job->uuid, job->entry.uuid);
		image_reader_close(image);
		if (ours)
			return 0;
	}
	return err_set(err, -ENOENT,
		       "there is no checkpoint of this run of %s; `pbeamctl log %s` lists those of earlier "
		       "ones, for --to",
		       store, store);
}

static int choose_image(struct saving *saving, const Pbeam__RollbackRequest *wish, struct err *err)
{
	const struct job *job = saving->job;

	job_store_name(job, request_target(job, wish->target), saving->store);
	if (wish->path && wish->path[0])
		return absolute_path(wish->path, wish->cwd, saving->path, err);
	if (wish->of_copy)
		return store_image_path(saving->store, wish->number, STORE_COPY, saving->path, err);
	if (wish->number)
		return store_find(saving->store, wish->number, saving->path, err);
	return newest_of_run(job, saving->store, saving->path, err);
}

/* Refuses before an image is chosen: its number would be lost. */
static int make_saving(struct request *request, struct saving **out, struct err *err)
{
	int r = coordinator_idle(request->job, err);

	if (r < 0)
		return r;
	*out = calloc(1, sizeof(**out));
	if (!*out)
		return err_code(err, -ENOMEM, "take the request");
	(*out)->request = request;
	(*out)->job = request->job;
	return 0;
}

/* Takes `saving`, also on failure. */
static int saving_start(struct saving *saving, const struct coordinator_wish *wish, struct err *err)
{
	struct request *request = saving->request;
	struct job *job = saving->job;
	int r;

	saving->start_ns = io_now_ns(CLOCK_MONOTONIC);
	r = coordinator_start(job, wish, on_saved, saving, err);
	if (r < 0) {
		free(saving);
		return r;
	}
	request->saving = saving;
	request->forget = saving_forget_request;
	if (saving->no_wait)
		tell_checkpoint(saving, NULL);
	else if (loop_timer_start(&job->loop, PROGRESS_NS, show_progress, saving) < 0)
		log_debug("no alarm to show progress with");
	return 0;
}

int request_checkpoint(struct request *request, const ProtobufCMessage *message, struct err *err)
{
	const Pbeam__CheckpointRequest *wish = (const Pbeam__CheckpointRequest *)message;
	struct job *job = request->job;
	struct coordinator_wish what = {
		.kind = COORDINATOR_CHECKPOINT,
		.target = request_target(job, wish->target),
		.kill = wish->kill,
		.alone = wish->alone,
		.save_files_max = wish->save_files_max ? wish->save_files_max : job->options->save_files_max,
	};
	struct saving *saving;
	int r;

	if (wish->mode && wish->mode[0] && strcmp(wish->mode, "stop") != 0)
		return err_set(err, -ENOTSUP, "this version has no mode %s; use --mode stop", wish->mode);
	r = make_saving(request, &saving, err);
	if (r < 0)
		return r;
	r = choose_output(saving, wish, what.target, err);
	if (r < 0) {
		free(saving);
		return r;
	}
	what.path = saving->path;
	what.numbered = saving->numbered;
	saving->no_wait = wish->no_wait;
	saving->resident = job_resident_bytes(job);
	return saving_start(saving, &what, err);
}

int request_rollback(struct request *request, const ProtobufCMessage *message, struct err *err)
{
	const Pbeam__RollbackRequest *wish = (const Pbeam__RollbackRequest *)message;
	struct coordinator_wish what = {.kind = COORDINATOR_ROLLBACK,
					.target = request_target(request->job, wish->target),
					.force = wish->force,
					.replace = wish->replace,
					.dry_run = wish->dry_run};
	struct saving *saving;
	int r = make_saving(request, &saving, err);

	if (r < 0)
		return r;
	saving->rolls_back = true;
	saving->dry_run = wish->dry_run;
	r = choose_image(saving, wish, err);
	if (r < 0) {
		free(saving);
		return r;
	}
	what.path = saving->path;
	return saving_start(saving, &what, err);
}

/* ---- a part of a cut over several hosts ---- */

static void on_part_saved(void *arg, const struct coordinator_outcome *outcome)
{
	const struct job *job = arg;

	if (outcome->err.code) /* the leader has the reason, or sees the end of the channel */
		log_error("vpid %d: %s", job->entry.root.n, outcome->err.text);
}

int request_save_part(struct request *request, const ProtobufCMessage *message, struct err *err)
{
	const Pbeam__CutRequest *save = (const Pbeam__CutRequest *)message;
	auto_close int channel = -1;
	Pbeam__Done done = PBEAM__DONE__INIT;
	struct coordinator_wish what = {.kind = COORDINATOR_PART,
					.save = save,
					.save_files_max = save->save_files_max
								  ? save->save_files_max
								  : request->job->options->save_files_max};
	int r;

	if (request->frame->nfds != 1)
		return err_set(err, -EPROTO, "a part of a cut needs its channel");
	what.channel = channel = steal_fd(&request->frame->fds[0]);
	r = coordinator_start(request->job, &what, on_part_saved, request->job, err);
	if (r == 0)
		request_reply(request, PBEAM__RPC__RPC_REPLY, &done.base, NULL, 0);
	return r;
}
