#include "scip/job/receive.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "image/image.h"
#include "image/store.h"
#include "proto/daemon.pb-c.h"
#include "proto/frame.h"
#include "proto/message.h"
#include "proto/rpc.h"
#include "scip/job/keeper.h"
#include "scip/job/streams.h"
#include "scip/migrate/migrate.h"

enum { CHANNEL_FD = 3, BEGIN_S = 20, TRIES = 100, NAP_NS = 20000000 };

static int take_begin(int channel, Pbeam__MigrateBegin **begin, struct err *err)
{
	rpc_set_timeout(channel, BEGIN_S * 1000);
	return wire_take(channel, PBEAM__CHANNEL_MESSAGE__MIGRATE_BEGIN, &pbeam__migrate_begin__descriptor,
			 begin, err);
}

pid_t receive_find_keeper(const char *uuid, struct err *err)
{
	auto_free struct name_job *jobs = NULL;
	struct names *names;
	pid_t keeper = 0;
	int n, r;

	r = names_open(&names, err);
	if (r < 0)
		return r;
	n = names_jobs_snapshot(names, &jobs);
	for (int i = 0; i < n; i++)
		if (!strcmp(jobs[i].uuid, uuid))
			keeper = jobs[i].keeper.n;
	names_close(names);
	return n < 0 ? err_code(err, n, "look for the job") : keeper;
}

int receive_pass_on(pid_t keeper, int channel, uint32_t type, const ProtobufCMessage *message,
		    struct err *err)
{
	struct frame reply = {0};
	auto_close int sock = frame_connect_to("job", keeper, err);
	int r;

	if (sock < 0)
		return sock;
	r = frame_send(sock, type, message, &channel, 1, err);
	if (r == 0)
		r = rpc_receive_frame(sock, "the job's keeper", &reply, err);
	/* The keeper has ended, perhaps before it accepted the connection. */
	if (r == -ECONNRESET || r == -EPIPE)
		return err_set(err, -ESRCH, "the job's keeper there has just ended; try again");
	if (r < 0)
		return r;
	frame_free(&reply);
	return 0;
}

/* Adds the path maps of this host's configuration, one per line (set by pbeamd). Maps of the request take
 * precedence. */
static int add_maps(Pbeam__MigrateBegin *begin, struct err *err)
{
	const char *configured = getenv("PBEAM_MAP");
	auto_free char *text = strdup(configured ? configured : "");
	char *rest = NULL;

	for (char *map = text ? strtok_r(text, "\n", &rest) : NULL; map; map = strtok_r(NULL, "\n", &rest))
		if (message_append_string(&begin->maps, &begin->n_maps, map) < 0)
			return err_code(err, -ENOMEM, "the maps of paths");
	return text ? 0 : err_code(err, -ENOMEM, "the maps of paths");
}

static int receive_fail(int channel, const struct err *err)
{
	log_error("receive: %s", err->text);
	rpc_refuse(channel, err);
	return EXIT_FAILURE;
}

/* A part of a cut whose job has no keeper here: the job is started again, with the streams that the image
 * describes. */
static int prepare_revival(const Pbeam__MigrateBegin *begin, char path[PATH_MAX],
			   struct keeper_options *options, struct err *err)
{
	const struct console_options streams = {.detach = true, .image_streams = true};
	int r = begin->cut
			? store_image_path(begin->cut->name, begin->cut->number, begin->cut->part, path, err)
			: err_set(err, -EPROTO, "there is no image to revive a job from");

	options->image = path;
	return r < 0 ? r : streams_choose(options, &streams, err);
}

/* A part whose stubs are on other hosts, and whose job has no keeper here: it becomes a guest, like the
 * target of a migration. The image tells where its streams lead on the home host. */
static int prepare_guest(Pbeam__MigrateBegin *begin, struct err *err)
{
	struct image_reader *image;
	const Pbeam__Manifest *manifest;
	char path[PATH_MAX];
	int r = store_image_path(begin->cut->name, begin->cut->number, begin->cut->part, path, err);

	if (r == 0)
		r = image_reader_open(&image, path, err);
	if (r < 0)
		return r;
	manifest = image_reader_manifest(image);
	begin->leads = manifest->n_processes && manifest->processes[0]->vsid == manifest->processes[0]->vpid;
	if (!manifest->job)
		r = err_set(err, -EBADMSG, "%s names no job", path);
	for (size_t i = 0; r == 0 && i < manifest->job->n_console; i++) {
		Pbeam__ConsoleStream *stream =
			message_add(begin->job, console, pbeam__console_stream__descriptor);

		if (!stream)
			r = err_code(err, -ENOMEM, "the console");
		else
			*stream = (Pbeam__ConsoleStream){.base = stream->base,
							 .index = manifest->job->console[i]->index,
							 .kind = manifest->job->console[i]->kind,
							 .path = stream->path};
	}
	if (r == 0)
		begin->job->keep = manifest->job->keep;
	if (r == 0 && message_string(&begin->job->group, manifest->job->group) < 0)
		r = err_code(err, -ENOMEM, "the job");
	image_reader_close(image);
	return r;
}

/* Passes the arrival to the job's keeper here. Returns 1 if the keeper took it, 0 if there is none. Tries
 * again while the keeper is ending, or is busy with a migration that has just been given up. */
static int give_to_keeper(int channel, const Pbeam__MigrateBegin *begin, struct err *err)
{
	for (int tries = 0;; tries++) {
		pid_t keeper = receive_find_keeper(begin->job->uuid, err);
		int r = keeper > 0 ? receive_pass_on(keeper, channel, PBEAM__DAEMON_REQUEST__DAEMON_RECEIVE,
						     &begin->base, err)
				   : keeper;

		if (keeper > 0 && r == 0)
			return 1;
		if (r == 0 || tries == TRIES ||
		    (r != -ESRCH && r != -ENOENT && r != -ECONNREFUSED && r != -EBUSY))
			return r;
		err_clear(err);
		nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
	}
}

/* The checkpoints of a job are numbered in one sequence on all hosts. */
static void take_numbers(const Pbeam__MigrateBegin *begin)
{
	const Pbeam__Job *job = begin->job;
	char store[STORE_JOB_MAX];
	struct err err = ERR_INIT;

	store_job_of(job->name, job->root_vpid, store);
	if (!job->last_number || begin->dry_run ||
	    (job->name[0] ? store_check_name(store, &err) < 0 : job->root_vpid <= 0))
		return;
	if (store_take(store, job->uuid, job->last_number, &err) < 0)
		log_warn("receive: %s", err.text);
}

int receive_run(void)
{
	struct keeper_options options = {.console = {-1, -1, -1}, .pty_master = -1};
	Pbeam__MigrateBegin *begin = NULL;
	struct err err = ERR_INIT;
	char path[PATH_MAX];
	sigset_t none;
	int channel = CHANNEL_FD, r;

	if (fcntl(channel, F_SETFD, FD_CLOEXEC) < 0 || take_begin(channel, &begin, &err) < 0) {
		log_error("receive: %s", err.text[0] ? err.text : "there is no channel");
		return EXIT_FAILURE;
	}
	begin->came_back = false; /* set on this side only */
	if (!begin->job) {
		err_set(&err, -EPROTO, "the request names no job");
		return receive_fail(channel, &err);
	}
	take_numbers(begin);
	r = add_maps(begin, &err);
	if (r == 0)
		r = give_to_keeper(channel, begin, &err);
	if (r < 0)
		return receive_fail(channel, &err);
	if (r > 0)
		return EXIT_SUCCESS;
	if (begin->revive && prepare_revival(begin, path, &options, &err) < 0)
		return receive_fail(channel, &err);
	if (begin->cut && !begin->revive && prepare_guest(begin, &err) < 0)
		return receive_fail(channel, &err);
	sigemptyset(&none);
	options.signal_mask = &none;
	options.begin = begin;
	options.channel = channel;
	options.save_files_max = begin->job->save_files_max;
	keeper_receive(&options);
}
