#include "scip/capture/capture.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fault.h"
#include "base/host_memory.h"
#include "base/io.h"
#include "base/log.h"
#include "base/page.h"
#include "proto/message.h"
#include "scip/object/object.h"
#include "scip/tracee/procfs.h"

enum {
	DUMP_MS = 3600000,
	EXPECT_MIN = 1024,
	EXPECT_LOOK = 1 << 17,
	EXPECT_MAX = 1 << 22,
	RETRY_FIRST_MS = 10,
};

void capture_log(const struct capture *c, const char *what)
{
	log_info("checkpoint of vpid %d: %s at %.1f ms", c->options->target.n, what,
		 (double)(io_now_ns(CLOCK_MONOTONIC) - c->begin_ns) / 1e6);
}

/* ---- opening ---- */

/* Returns the process's proportional set size in pages, or 0 if it cannot be read. */
static uint64_t share_of(pid_t pid)
{
	return procfs_bytes(pid, "smaps_rollup", "Pss") / PAGE;
}

/* Estimates how many pages the table of stored pages must hold: those of a job with several processes. A
 * page that many processes share counts once. For large jobs this is worth a walk over the page tables,
 * because every scip maps the table, and a large one costs it as many page faults. */
static uint64_t expect_pages(struct names *names, struct rpid keeper)
{
	auto_free struct name_process *all = NULL;
	int n = names_snapshot(names, keeper, &all);
	uint64_t sum = 0, shares = 0;

	for (int i = 0; i < n && n > 1; i++)
		sum += procfs_resident(all[i].rpid.n) / PAGE;
	for (int i = 0; i < n && sum > EXPECT_LOOK; i++)
		shares += share_of(all[i].rpid.n);
	if (shares && shares < sum)
		sum = shares;
	return sum < EXPECT_MIN ? EXPECT_MIN : sum > EXPECT_MAX ? EXPECT_MAX : sum;
}

/* Makes SIGTERM, SIGINT and SIGHUP readable instead of delivering them. Returns the signalfd or -errno. */
static int block_signals(struct capture *c, struct err *err)
{
	sigset_t set;
	int fd;

	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGHUP);
	sigprocmask(SIG_BLOCK, &set, &c->signals_before);
	c->signals_blocked = true;
	fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	return fd < 0 ? err_sys(err, "make a signalfd") : fd;
}

/* Discards the signals that came: the driver's return value reports them. */
static void release_signals(struct capture *c)
{
	struct signalfd_siginfo info;
	int fd = c->group.cancel;

	if (fd >= 0) {
		while (read(fd, &info, sizeof(info)) > 0)
			continue;
		close(fd);
	}
	if (c->signals_blocked)
		sigprocmask(SIG_SETMASK, &c->signals_before, NULL);
}

int capture_open(struct capture *c, struct names *names, const struct capture_options *options,
		 struct err *err)
{
	struct name_process target;
	int r;

	*c = (struct capture){.options = options,
			      .group = {.names = names, .cancel = -1},
			      .begin_ns = io_now_ns(CLOCK_MONOTONIC)};
	if (names_process_get(names, options->target, &target) < 0)
		return err_set(err, -ESRCH, "vpid %d: there is no such process", options->target.n);
	c->group.keeper = target.keeper;
	c->group.moves = options->moves;
	c->group.stays = options->stays;
	c->group.stays_arg = options->stays_arg;
	c->group.whole_job = options->whole_job ||
			     (!options->alone && options->job && options->job->root.n == options->target.n);
	io_raise_descriptor_limit(); /* each process needs a connection and a few descriptors */
	if (options->path)
		capture_remove_stale(options->path);
	r = image_writer_open(&c->writer, options->path, expect_pages(names, target.keeper), err);
	if (r < 0)
		return r;
	c->manifest = message_new(&pbeam__manifest__descriptor);
	if (!c->manifest)
		return err_code(err, -ENOMEM, "checkpoint");
	r = block_signals(c, err);
	if (r < 0)
		return r;
	c->group.cancel = r;
	return 0;
}

void capture_close(struct capture *c)
{
	group_free(&c->group);
	image_writer_close(c->writer);
	message_free(c->manifest);
	release_signals(c);
}

/* ---- freezing ---- */

int capture_freeze(struct capture *c, struct err *err)
{
	int r;

	c->begin_ns = io_now_ns(CLOCK_MONOTONIC);
	c->swapped_out = host_memory_swapped_out();
	r = group_freeze(&c->group, c->options->target, c->options->alone, err);
	if (r >= 0)
		r = fault_point("after-freeze", err);
	capture_log(c, "frozen");
	return r;
}

void capture_thaw(struct capture *c)
{
	group_thaw(&c->group);
}

/* ---- processes ---- */

/* Describes a zombie or a stub, of which only the numbers are saved. */
static Pbeam__Process *describe_empty(struct names *names, const struct member *member, struct err *err)
{
	Pbeam__Process *out = message_new(&pbeam__process__descriptor);
	Pbeam__Thread *thread;
	struct procfs_stat stat;

	if (!out)
		return NULL;
	if (procfs_stat_read(member->rpid.n, 0, &stat, err) < 0) {
		message_free(out);
		return NULL;
	}
	out->vpid = member->vpid.n;
	out->vppid = names_parent(names, member->rpid, (struct rpid){stat.ppid}).n;
	out->vpgid = names_virtual(names, (struct rpid){stat.pgrp}).n;
	out->vsid = names_virtual(names, (struct rpid){stat.session}).n;
	out->state = member->stub ? PBEAM__PROCESS__STATE__STUB : PBEAM__PROCESS__STATE__ZOMBIE;
	out->exit_status = member->stub ? 0 : stat.exit_code;
	out->stop_signal = member->stopped;
	out->exit_signal = stat.exit_signal;
	thread = message_add(out, threads, pbeam__thread__descriptor);
	if (!thread || message_text(&thread->comm, stat.comm) < 0) {
		message_free(out);
		return NULL;
	}
	thread->vtid = out->vpid;
	out->leader_exited = !member->stub;
	return out;
}

static int dump_processes(struct capture *c, Pbeam__ScipDump__What what, struct err *err)
{
	Pbeam__ScipDump request = PBEAM__SCIP_DUMP__INIT;
	const int fds[2] = {image_writer_fd(c->writer), image_writer_arena_fd(c->writer)};
	struct group *group = &c->group;
	int r;

	c->manifest->partial = what == PBEAM__SCIP_DUMP__WHAT__WRITTEN;
	for (size_t i = 0; i < group->n; i++) {
		bool whole = what == PBEAM__SCIP_DUMP__WHAT__WRITTEN && !group->v[i]->precopied;

		request.what = whole ? PBEAM__SCIP_DUMP__WHAT__ALL : what;
		if (group_has_contents(group->v[i]))
			group_ask(group->v[i], PBEAM__SCIP_REQUEST__SCIP_DUMP, &request.base, fds, 2);
	}
	r = group_gather(group, &pbeam__scip_dumped__descriptor, DUMP_MS, err);
	return r < 0 ? r : group_problem(group, err);
}

/* Moves the process out of its scip's reply, or describes one that has no contents. */
static int set_process(struct capture *c, struct member *member, struct err *err)
{
	if (!group_has_contents(member)) {
		member->process = describe_empty(c->group.names, member, err);
		return member->process ? 0 : err_wrap(err, -ESRCH, "vpid %d", member->vpid.n);
	}
	member->dumped = (void *)member->reply;
	member->reply = NULL;
	if (!member->dumped || !member->dumped->process || !member->dumped->process->memory)
		return err_set(err, -EPROTO, "vpid %d: its scip sent an incomplete dump", member->vpid.n);
	member->process = member->dumped->process;
	member->dumped->process = NULL;
	return 0;
}

/* The manifest lists parents first, as the members are. */
static int add_processes(struct capture *c, struct err *err)
{
	Pbeam__Manifest *manifest = c->manifest;
	int r = 0;

	for (size_t i = 0; i < c->group.n && r >= 0; i++) {
		struct member *member = c->group.v[i];

		r = set_process(c, member, err);
		if (r >= 0)
			r = message_append(&manifest->processes, &manifest->n_processes,
					   &member->process->base);
	}
	return r;
}

int capture_dump(struct capture *c, Pbeam__ScipDump__What what, struct err *err)
{
	int r = group_check_isolation(&c->group, err);

	if (r >= 0)
		r = capture_describe_host(c->group.names, c->manifest, err);
	if (r >= 0)
		r = dump_processes(c, what, err);
	if (r >= 0)
		r = add_processes(c, err);
	capture_log(c, "processes dumped");
	return r < 0 ? r : fault_point("after-dump", err);
}

/* ---- shared memory ---- */

static struct sharing_limits limits_of(const struct capture *c)
{
	return (struct sharing_limits){.max = c->options->save_files_max,
				       .swapped_out = c->swapped_out,
				       .external = c->options->external,
				       .precopy = c->options->shared,
				       .precopy_arg = c->options->shared_arg};
}

int capture_list_shared(struct capture *c, struct err *err)
{
	const struct sharing_limits limits = limits_of(c);
	int r = group_list_shared(&c->group, c->writer, c->manifest, &limits, err);

	return r < 0 ? r : capture_list_numbers(c->manifest);
}

int capture_shared(struct capture *c, struct err *err)
{
	const struct sharing_limits limits = limits_of(c);
	int r = group_dump_shared(&c->group, c->writer, c->manifest, &limits, err);

	if (r >= 0)
		r = group_dump_sysv(&c->group, c->writer, c->manifest, err);
	capture_log(c, "shared memory dumped");
	return r;
}

/* ---- the job and its objects ---- */

static int add_job(struct capture *c)
{
	const struct name_job *job = c->options->job;
	Pbeam__Job *out = c->manifest->job = message_new(&pbeam__job__descriptor);

	if (!out)
		return -ENOMEM;
	out->save_files_max = c->options->save_files_max;
	out->root_vpid = c->options->target.n;
	if (c->options->console && capture_describe_streams(out, c->options->console) < 0)
		return -ENOMEM;
	if (!job)
		return 0;
	out->interval_ns = job->interval_ns;
	out->keep = job->keep;
	if (message_string(&out->name, job->name) < 0)
		return -ENOMEM;
	if (message_string(&out->group, job->group) < 0)
		return -ENOMEM;
	return message_string(&out->uuid, job->uuid);
}

static int dump_objects(struct capture *c, struct err *err)
{
	const struct object_dump_options options = {.save_files_max = c->options->save_files_max,
						    .console = c->options->console,
						    .external = c->options->external};
	auto_free struct rpid *rpids = calloc(c->group.n, sizeof(*rpids));

	if (!rpids)
		return -ENOMEM;
	for (size_t i = 0; i < c->group.n; i++)
		rpids[i] = c->group.v[i]->rpid;
	return object_dump_all(c->group.names, c->writer, c->manifest, rpids, &options, err);
}

int capture_objects(struct capture *c, struct err *err)
{
	int r = add_job(c);

	if (r >= 0)
		r = dump_objects(c, err);
	capture_log(c, "objects dumped");
	if (r >= 0)
		r = capture_list_numbers(c->manifest);
	return r < 0 ? r : group_cancelled(&c->group, err);
}

/* ---- the end ---- */

int capture_commit(struct capture *c, bool durable, struct capture_result *result, struct err *err)
{
	int r;

	result->processes = (uint32_t)c->group.n;
	for (size_t i = 0; i < c->group.n; i++)
		result->threads += c->group.v[i]->threads;
	r = image_writer_commit(c->writer, c->manifest, durable, &result->bytes, err);
	if (r >= 0)
		capture_log(c, durable ? "committed" : "image made");
	return r;
}

bool capture_should_retry(struct capture_retry *retry, struct vpid target, int r, struct err *err)
{
	struct timespec pause;
	long ms = retry->next_ms ? retry->next_ms : RETRY_FIRST_MS;

	if (r != -EBUSY || ms > retry->last_ms)
		return false;
	retry->next_ms = 2 * ms;
	log_info("checkpoint of vpid %d: tried again in %ld ms", target.n, ms);
	/* The pause is random in part, so that two captures that obstruct each other do not collide every
	 * time. */
	ms += (long)(io_now_ns(CLOCK_MONOTONIC) / 1000 % (uint64_t)ms);
	pause = (struct timespec){ms / 1000, ms % 1000 * 1000000};
	if (nanosleep(&pause, NULL) < 0)
		return false; /* a signal that the caller handles */
	err_clear(err);
	return true;
}
