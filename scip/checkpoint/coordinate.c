/*
 * A checkpoint, from the freeze to the commit.
 *
 * Order: the file is opened first, so that an unwritable place is refused before anything is frozen; freeze;
 * every scip dumps its process; shared memory; objects; thaw; only then the slow part: digests, sync, rename.
 * With --kill the processes stay frozen until the image is durable, then they end.
 *
 * Undo: whatever fails before the commit, the group is thawed, the connections closed (which thaws what did
 * not hear), the temporary file removed. The coordinator has a signalfd for the signals that ask it to stop;
 * what kills it outright closes its connections, and that thaws too; the temporary file is then cleaned up by
 * the next checkpoint of the same path.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fault.h"
#include "base/io.h"
#include "base/log.h"
#include "base/memory.h"
#include "proto/message.h"
#include "scip/checkpoint/checkpoint.h"
#include "scip/checkpoint/group.h"
#include "scip/object/object.h"
#include "scip/tracee/procfs.h"

enum {
	DUMP_MS = 3600000,
	PAGE = 4096,
	EXPECT_MIN = 1024,
	EXPECT_LOOK = 1 << 17,
	EXPECT_MAX = 1 << 22,
};
enum { RETRY_FIRST_MS = 10, RETRY_LAST_MS = 320, RETRY_LAST_MOVE_MS = 1280 };

struct run {
	const struct checkpoint_options *options;
	struct group group;
	struct image_writer *writer;
	Pbeam__Manifest *manifest;
	uint64_t begin_ns, thawed_ns;
	Pbeam__ScipDump__What what;
};

/* What the process takes, shared pages counted in part, in pages; 0 if that cannot be read. */
static uint64_t share_of(pid_t pid)
{
	return procfs_bytes(pid, "smaps_rollup", "Pss") / PAGE;
}

/* How many pages may be looked for in the image: those of a job with more than one process. A page that many
 * share is one; where that makes a difference it is worth a look at their page tables, for every scip maps
 * the table, and a large one costs it as many page faults. */
static uint64_t expect_pages(struct names *names, struct rpid keeper)
{
	auto_free struct name_process *all = NULL;
	int n = names_snapshot(names, keeper, &all);
	uint64_t sum = 0, shares = 0;

	for (int i = 0; i < n && n > 1; i++) {
		auto_free char *text = NULL;
		unsigned long resident;
		char path[64];

		snprintf(path, sizeof(path), "/proc/%d/statm", all[i].rpid.n);
		if (io_slurp(-100, path, PAGE, &text, NULL) == 0 && sscanf(text, "%*u %lu", &resident) == 1)
			sum += resident;
	}
	for (int i = 0; i < n && sum > EXPECT_LOOK; i++)
		shares += share_of(all[i].rpid.n);
	if (shares && shares < sum)
		sum = shares;
	return sum < EXPECT_MIN ? EXPECT_MIN : sum > EXPECT_MAX ? EXPECT_MAX : sum;
}

/* Up to a connection and a few descriptors for each of a thousand processes. */
static void raise_descriptor_limit(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
		limit.rlim_cur = limit.rlim_max;
		setrlimit(RLIMIT_NOFILE, &limit);
	}
}

/* A process that has ended and was not waited for, or the stub of one: only its numbers count. */
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

static int dump_all(struct run *run, struct err *err)
{
	Pbeam__ScipDump request = PBEAM__SCIP_DUMP__INIT;
	const int fds[2] = {image_writer_fd(run->writer), image_writer_arena_fd(run->writer)};
	struct group *group = &run->group;
	int rc;

	run->manifest->partial = run->what == PBEAM__SCIP_DUMP__WHAT__WRITTEN;
	for (size_t i = 0; i < group->n; i++) {
		bool whole = run->what == PBEAM__SCIP_DUMP__WHAT__WRITTEN && !group->v[i]->precopied;

		request.what = whole ? PBEAM__SCIP_DUMP__WHAT__ALL : run->what;
		if (group_has_contents(group->v[i]))
			group_ask(group->v[i], PBEAM__SCIP_REQUEST__SCIP_DUMP, &request.base, fds, 2);
	}
	rc = group_gather(group, &pbeam__scip_dumped__descriptor, DUMP_MS, err);
	return rc < 0 ? rc : group_problem(group, err);
}

/* The answers become the manifest's processes, parents first as the members are. */
static int take_processes(struct run *run, struct err *err)
{
	for (size_t i = 0; i < run->group.n; i++) {
		struct member *m = run->group.v[i];
		int rc;

		if (!group_has_contents(m)) {
			m->process = describe_empty(run->group.names, m, err);
			if (!m->process)
				return err_wrap(err, -ESRCH, "vpid %d", m->vpid.n);
		} else {
			m->dumped = (void *)m->reply;
			m->reply = NULL;
			if (!m->dumped || !m->dumped->process || !m->dumped->process->memory)
				return err_set(err, -EPROTO, "vpid %d: its scip sent an incomplete dump",
					       m->vpid.n);
			m->process = m->dumped->process;
			m->dumped->process = NULL;
		}
		rc = message_append(&run->manifest->processes, &run->manifest->n_processes,
				    &m->process->base);
		if (rc < 0)
			return rc;
	}
	return 0;
}

/* What the job's standard streams were, for whoever starts it anew without any of ours to pass on. */
static int describe_stream(Pbeam__ConsoleStream *out, int fd)
{
	char link[64], path[PATH_MAX];
	struct stat st;

	out->kind = PBEAM__CONSOLE_STREAM__KIND__CLOSED;
	if (fd < 0 || fstat(fd, &st) < 0)
		return 0;
	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	if (isatty(fd)) {
		out->kind = PBEAM__CONSOLE_STREAM__KIND__TTY;
	} else if (S_ISREG(st.st_mode) && io_readlink(AT_FDCWD, link, path, sizeof(path)) == 0) {
		out->kind = PBEAM__CONSOLE_STREAM__KIND__FILE;
		return message_string(&out->path, path);
	} else if (S_ISSOCK(st.st_mode)) {
		out->kind = PBEAM__CONSOLE_STREAM__KIND__SOCKET;
	} else {
		out->kind = S_ISFIFO(st.st_mode) ? PBEAM__CONSOLE_STREAM__KIND__PIPE
						 : PBEAM__CONSOLE_STREAM__KIND__NULLDEV;
	}
	return 0;
}

int checkpoint_describe_streams(Pbeam__Job *out, const int console[3])
{
	out->console = calloc(3, sizeof(*out->console));
	if (!out->console)
		return -ENOMEM;
	for (int i = 0; i < 3; i++) {
		Pbeam__ConsoleStream *stream = message_new(&pbeam__console_stream__descriptor);
		int rc;

		if (!stream)
			return -ENOMEM;
		stream->index = i;
		out->console[out->n_console++] = stream;
		rc = describe_stream(stream, console[i]);
		if (rc < 0)
			return rc;
	}
	return 0;
}

static int describe_job(struct run *run)
{
	const struct name_job *job = run->options->job;
	Pbeam__Job *out = run->manifest->job = message_new(&pbeam__job__descriptor);

	if (!out)
		return -ENOMEM;
	out->save_files_max = run->options->save_files_max;
	out->root_vpid = run->options->target.n;
	if (run->options->console && checkpoint_describe_streams(out, run->options->console) < 0)
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

static int dump_objects(struct run *run, struct err *err)
{
	const struct checkpoint_mover *mover = run->options->mover;
	const struct checkpoint_cut *cut = run->options->cut;
	const struct object_dump_options options = {.save_files_max = run->options->save_files_max,
						    .console = run->options->console,
						    .external = mover ? mover->external
								: cut ? cut->external
								      : NULL};
	auto_free struct rpid *rpids = calloc(run->group.n, sizeof(*rpids));

	if (!rpids)
		return -ENOMEM;
	for (size_t i = 0; i < run->group.n; i++)
		rpids[i] = run->group.v[i]->rpid;
	return object_dump_all(run->group.names, run->writer, run->manifest, rpids, &options, err);
}

/* For who wonders where the time goes. */
static void note(const struct run *run, const char *what)
{
	log_info("checkpoint of vpid %d: %s at %.1f ms", run->options->target.n, what,
		 (double)(io_now_ns(CLOCK_MONOTONIC) - run->begin_ns) / 1e6);
}

/* Everything that needs the group frozen. */
static int save(struct run *run, struct err *err)
{
	const struct checkpoint_mover *mover = run->options->mover;
	const struct sharing_limits limits = {.max = run->options->save_files_max,
					      .swapped_out = memory_swapped_out(),
					      .external = mover ? mover->external : NULL,
					      .ahead = mover ? mover->shared : NULL,
					      .ahead_arg = mover ? mover->arg : NULL};
	int rc = group_freeze(&run->group, run->options->target, run->options->alone, err);

	if (rc >= 0)
		rc = fault_point("after-freeze", err);
	note(run, "frozen");
	if (rc >= 0 && mover && mover->frozen)
		rc = mover->frozen(mover->arg, &run->group, &run->what, err);
	if (rc >= 0 && run->options->cut)
		rc = run->options->cut->frozen(run->options->cut->arg, &run->group, err);
	if (rc >= 0)
		rc = group_check_isolation(&run->group, err);
	if (rc >= 0)
		rc = manifest_describe(run->group.names, run->manifest, err);
	if (rc >= 0)
		rc = dump_all(run, err);
	if (rc >= 0)
		rc = take_processes(run, err);
	note(run, "processes dumped");
	if (rc >= 0)
		rc = fault_point("after-dump", err);
	if (run->what == PBEAM__SCIP_DUMP__WHAT__SKELETON) {
		if (rc >= 0 && limits.ahead)
			rc = group_list_shared(&run->group, run->writer, run->manifest, &limits, err);
		return rc < 0 ? rc : manifest_number(run->manifest);
	}
	if (rc >= 0)
		rc = group_dump_shared(&run->group, run->writer, run->manifest, &limits, err);
	if (rc >= 0)
		rc = group_dump_sysv(&run->group, run->writer, run->manifest, err);
	note(run, "shared memory dumped");
	if (rc >= 0)
		rc = describe_job(run);
	if (rc >= 0)
		rc = dump_objects(run, err);
	note(run, "objects dumped");
	if (rc >= 0)
		rc = manifest_number(run->manifest);
	if (rc >= 0)
		rc = group_cancelled(&run->group, err);
	return rc;
}

static void count(const struct run *run, struct checkpoint_result *result)
{
	result->processes = (uint32_t)run->group.n;
	for (size_t i = 0; i < run->group.n; i++)
		result->threads += run->group.v[i]->threads;
}

/* Nothing is synced: the image lives as long as the migration. */
static int run_move(struct run *run, struct checkpoint_result *result, struct err *err)
{
	const struct checkpoint_mover *mover = run->options->mover;
	int rc;

	run->begin_ns = io_now_ns(CLOCK_MONOTONIC);
	run->what = mover->what;
	rc = save(run, err);
	if (rc >= 0)
		count(run, result);
	if (rc >= 0)
		rc = image_writer_commit(run->writer, run->manifest, false, &result->bytes, err);
	note(run, "image made");
	if (rc >= 0)
		rc = mover->move(mover->arg, &run->group, image_writer_fd(run->writer), result->bytes, err);
	if (rc < 0 && mover->abort)
		mover->abort(mover->arg);
	if (rc < 0 || mover->what == PBEAM__SCIP_DUMP__WHAT__SKELETON)
		group_thaw(&run->group);
	result->total_ns = io_now_ns(CLOCK_MONOTONIC) - run->begin_ns;
	note(run, rc < 0 ? "thawed" : "moved");
	return rc;
}

static int run_checkpoint(struct run *run, struct checkpoint_result *result, struct err *err)
{
	const struct checkpoint_cut *cut = run->options->cut;
	int rc = cut ? cut->opened(cut->arg, err) : 0;

	run->begin_ns = io_now_ns(CLOCK_MONOTONIC);
	if (rc >= 0)
		rc = save(run, err);
	if (rc >= 0 && cut)
		rc = cut->dumped(cut->arg, err);
	if (rc < 0 || !run->options->kill)
		group_thaw(&run->group);
	run->thawed_ns = io_now_ns(CLOCK_MONOTONIC);
	note(run, "thawed");
	if (rc < 0)
		return rc;
	run->manifest->pause_ns = result->pause_ns = run->thawed_ns - run->begin_ns;
	count(run, result);
	rc = fault_point("before-commit", err);
	if (rc >= 0)
		rc = image_writer_commit(run->writer, run->manifest, true, &result->bytes, err);
	if (rc >= 0)
		note(run, "committed");
	if (rc >= 0 && cut)
		rc = cut->durable(cut->arg, result, err);
	if (rc < 0) {
		group_thaw(&run->group);
		return rc;
	}
	if (run->options->kill)
		rc = group_terminate(&run->group, err);
	result->total_ns = io_now_ns(CLOCK_MONOTONIC) - run->begin_ns;
	return rc;
}

/* SIGTERM, SIGINT and SIGHUP are read, not taken, while the checkpoint runs. */
static int catch_signals(sigset_t *before)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGHUP);
	sigprocmask(SIG_BLOCK, &set, before);
	return signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

/* What has come is taken away: the caller hears of it by our return, and is to report it. */
static void release_signals(int fd, const sigset_t *before)
{
	struct signalfd_siginfo info;

	if (fd >= 0) {
		while (read(fd, &info, sizeof(info)) > 0)
			continue;
		close(fd);
	}
	sigprocmask(SIG_SETMASK, before, NULL);
}

static int attempt(struct names *names, const struct checkpoint_options *options,
		   struct checkpoint_result *result, struct err *err)
{
	struct run run = {.options = options, .group = {.names = names, .cancel = -1}};
	struct name_process target;
	sigset_t before;
	int rc = names_process_get(names, options->target, &target);

	memset(result, 0, sizeof(*result));
	if (rc < 0)
		return err_set(err, -ESRCH, "vpid %d: there is no such process", options->target.n);
	run.group.keeper = target.keeper;
	run.group.moves = options->mover || options->cut;
	run.group.stays = options->mover ? options->mover->stays : NULL;
	run.group.stays_arg = options->mover ? options->mover->stays_arg : NULL;
	run.group.whole_job = !options->alone && options->job &&
			      (options->cut || options->job->root.n == options->target.n);
	raise_descriptor_limit();
	if (!options->mover)
		stale_remove(options->path);
	rc = image_writer_open(&run.writer, options->mover ? NULL : options->path,
			       expect_pages(names, target.keeper), err);
	if (rc < 0)
		return rc;
	run.manifest = message_new(&pbeam__manifest__descriptor);
	run.group.cancel = catch_signals(&before);
	rc = !run.manifest ? -ENOMEM : run.group.cancel < 0 ? err_sys(err, "make a signalfd") : 0;
	if (rc >= 0)
		rc = options->mover ? run_move(&run, result, err) : run_checkpoint(&run, result, err);
	group_free(&run.group);
	image_writer_close(run.writer);
	message_free(run.manifest);
	release_signals(run.group.cancel, &before);
	return rc < 0 && err && !err->text[0] ? err_code(err, rc, "checkpoint") : rc;
}

/* What is refused because it is under way (a connection that nobody has accepted yet, events that nobody has
 * read yet) mostly is done with when the program has run a little further. */
int checkpoint_run(struct names *names, const struct checkpoint_options *options,
		   struct checkpoint_result *result, struct err *err)
{
	/* Who moves may be in the way of its connections' other ends, which move as well; a skeleton has
	 * none. */
	const bool moves = options->mover && options->mover->what != PBEAM__SCIP_DUMP__WHAT__SKELETON;
	const long last = moves ? RETRY_LAST_MOVE_MS : RETRY_LAST_MS;
	int rc = attempt(names, options, result, err);

	for (long ms = RETRY_FIRST_MS; rc == -EBUSY && ms <= last && !options->cut; ms *= 2) {
		/* Not always the same, so that two that are in each other's way do not meet again and again.
		 */
		const long chance = ms + (long)(io_now_ns(CLOCK_MONOTONIC) / 1000 % (uint64_t)ms);
		const struct timespec pause = {chance / 1000, chance % 1000 * 1000000};

		log_info("checkpoint of vpid %d: tried again in %ld ms", options->target.n, ms);
		if (nanosleep(&pause, NULL) < 0)
			break; /* the signal ends us, or is seen by the next attempt */
		err_clear(err);
		rc = attempt(names, options, result, err);
	}
	return rc;
}
