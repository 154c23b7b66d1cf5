/*
 * The source of a migration.
 *
 * Before the freeze: opens the channel, requests the target's consent, makes the record PREPARED, lets the
 * providers of external objects survey them, pre-copies. Frozen: captures the processes (capture.h) and
 * sends the image to the target, which restores and holds them. Then SCIP_KEEP makes the scips keep their
 * processes frozen even if this coordinator is killed: from here on only the registry records where the
 * processes are, and the keeper queries it (migrate_settle()). After the commit the target lets the processes
 * run; the processes here end, except the first if its parent stays (SCIP_STUB).
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fault.h"
#include "base/io.h"
#include "base/log.h"
#include "channel/channel.h"
#include "image/store.h"
#include "proto/frame.h"
#include "proto/message.h"
#include "proto/rpc.h"
#include "scip/arrival/providers.h"
#include "scip/capture/capture.h"
#include "scip/ends/external.h"
#include "scip/files/files.h"
#include "scip/migrate/migrate.h"
#include "scip/precopy/page_stream.h"
#include "scip/precopy/precopy.h"
#include "scip/rebuild/rebuild.h"
#include "scip/tracee/procfs.h"

enum { DEPTH_MAX = 4096, READY_S = 20, HELD_S = 600, ANSWER_MS = 30000 };
enum { BEGINNINGS = 3, LOOK_NS = 2000000 };
/* The longest pause between attempts. Longer than for a checkpoint: processes that move may be in the way of
 * the other ends of their connections, which move as well. */
enum { RETRY_MS = 1280 };
#define PAUSE_NS    100000000ull /* as usual; half of it is not worth another try */
#define PATIENCE_NS 500000000ull /* with processes that come and go */

struct departure {
	const struct migrate_options *options;
	struct migrate_result *result;
	struct migrate_source source;
	struct object_external external;
	struct record record;
	char own_host[64];
	char stub_host[64]; /* where the first process has its stub already, "" */
	int channel;
	struct files_sender *files;
	uint64_t frozen_ns;
	bool stated, committed, ended;
	struct precopy *precopy;
	int32_t *precopied; /* vpids */
	size_t nprecopied;
	/* What follows when new processes have too much memory. */
	enum { GO_ON, TRY_AGAIN, PRECOPY_AGAIN } then;
	uint64_t changed_ns; /* the first time, 0: not yet */
	unsigned beginnings;
};

/* ---- before the freeze ---- */

/* True if `process` is the target or descends from it. */
static bool is_in_target(const struct departure *d, struct names *names, struct name_process process)
{
	for (int depth = 0; depth < DEPTH_MAX; depth++) {
		if (process.vpid.n == d->options->target.n)
			return true;
		if (d->options->alone || process.parent.n <= 0 ||
		    names_process_get(names, process.parent, &process) < 0)
			return false;
	}
	return false;
}

/* Estimates what must be sent of a new process: memory without files, and shared memory as far as it exceeds
 * what was pre-copied. */
static uint64_t own_bytes(const struct departure *d, pid_t pid)
{
	const uint64_t sent = d->precopy ? precopy_shared_bytes(d->precopy) : 0;
	const uint64_t shared = procfs_bytes(pid, "status", "RssShmem");

	return procfs_bytes(pid, "status", "RssAnon") + (shared > sent ? shared - sent : 0);
}

/* Lists the processes that would move now in *out, which the caller frees. Returns their number or -errno. */
static int find_processes(const struct departure *d, struct name_process **out)
{
	struct names *names = d->source.names;
	int n = names_snapshot(names, d->options->job->keeper, out), kept = 0;

	for (int i = 0; i < n; i++)
		if (is_in_target(d, names, (*out)[i]))
			(*out)[kept++] = (*out)[i];
	return n < 0 ? n : kept;
}

static int list_moving(const struct departure *d, Pbeam__MigrateBegin *begin)
{
	auto_free struct name_process *all = NULL;
	int n = find_processes(d, &all);

	begin->vpids = n > 0 ? calloc((size_t)n, sizeof(*begin->vpids)) : NULL;
	if (!begin->vpids)
		return n < 0 ? n : n == 0 ? -ESRCH : -ENOMEM;
	for (int i = 0; i < n; i++) {
		begin->vpids[begin->n_vpids++] = all[i].vpid.n;
		begin->memory += procfs_resident(all[i].rpid.n);
		begin->stubs = begin->stubs || all[i].state == NAME_STATE_STUB;
	}
	return 0;
}

static int describe_moving_job(const struct departure *d, Pbeam__MigrateBegin *begin)
{
	const struct name_job *job = d->options->job;
	Pbeam__Job *out = begin->job = message_new(&pbeam__job__descriptor);
	char store[STORE_JOB_MAX];

	if (!out)
		return -ENOMEM;
	store_job_of(job->name, job->root.n, store);
	out->root_vpid = job->root.n;
	out->interval_ns = job->interval_ns;
	out->keep = job->keep;
	out->save_files_max = d->options->save_files_max;
	if (store_last(store, &out->last_number, NULL) < 0)
		log_debug("migrate: the checkpoints of %s have no numbers", store);
	if (capture_describe_streams(out, d->options->console) < 0)
		return -ENOMEM;
	if (message_string(&out->name, job->name) < 0 || message_string(&out->group, job->group) < 0 ||
	    message_string(&out->incarnation, d->options->incarnation) < 0)
		return -ENOMEM;
	return message_string(&out->uuid, job->uuid);
}

static bool leads_session(const struct departure *d)
{
	struct name_process process;
	struct procfs_stat stat;

	return names_process_get(d->source.names, d->options->target, &process) == 0 &&
	       procfs_stat_read(process.rpid.n, 0, &stat, NULL) == 0 && stat.session == process.rpid.n;
}

/* Describes the host as a manifest does. */
static int describe_own_host(Pbeam__MigrateBegin *begin, struct err *err)
{
	Pbeam__Manifest *manifest = message_new(&pbeam__manifest__descriptor);
	int r = manifest ? capture_describe_host(NULL, manifest, err) : -ENOMEM;

	if (r == 0) {
		begin->host = manifest->host;
		begin->uid = manifest->uid;
		manifest->host = NULL;
	}
	message_free(manifest);
	return r;
}

static int describe_migration(const struct departure *d, Pbeam__MigrateBegin *begin, struct err *err)
{
	const char *home = d->options->home ? d->options->home : d->own_host;
	const char *stub_host = d->options->stub ? d->own_host : d->stub_host;
	int r = describe_own_host(begin, err);

	if (r < 0)
		return r;
	begin->root = d->options->target.n;
	begin->leads = leads_session(d);
	begin->dry_run = d->options->dry_run;
	begin->send_files = d->options->send_files;
	begin->streams = PAGE_STREAMS_MAX;
	r = describe_moving_job(d, begin);
	if (r < 0)
		return r;
	r = list_moving(d, begin);
	if (r < 0)
		return r;
	for (size_t i = 0; i < d->options->nmaps && r == 0; i++)
		r = message_append_string(&begin->maps, &begin->n_maps, d->options->maps[i]);
	if (r < 0 || message_string(&begin->uuid, d->source.uuid) < 0 ||
	    message_string(&begin->home, home) < 0 || message_string(&begin->from, d->own_host) < 0 ||
	    message_string(&begin->stub_host, stub_host) < 0)
		return -ENOMEM;
	return 0;
}

static int exchange_begin(struct departure *d, const Pbeam__MigrateBegin *begin, Pbeam__MigrateReady **ready,
			  struct err *err)
{
	int r = d->channel = channel_open(d->options->host, PBEAM__CHANNEL_KIND__CHANNEL_MIGRATE, NULL, err);

	if (r < 0)
		return r;
	rpc_set_timeout(d->channel, READY_S * 1000);
	r = wire_send(d->channel, PBEAM__CHANNEL_MESSAGE__MIGRATE_BEGIN, &begin->base, err);
	if (r < 0)
		return r;
	return wire_take(d->channel, PBEAM__CHANNEL_MESSAGE__MIGRATE_READY, &pbeam__migrate_ready__descriptor,
			 ready, err);
}

/* Opens the channel and requests the target's consent. */
static int request_consent(struct departure *d, struct err *err)
{
	Pbeam__MigrateBegin *begin = message_new(&pbeam__migrate_begin__descriptor);
	Pbeam__MigrateReady *ready = NULL;
	int r = begin ? describe_migration(d, begin, err) : -ENOMEM;

	if (r < 0 && !(err && err->code))
		err_code(err, r, "describe vpid %d", d->options->target.n);
	if (r == 0)
		r = exchange_begin(d, begin, &ready, err);
	for (size_t i = 0; r == 0 && i < ready->n_obstacles; i++)
		migrate_obstacle(&d->source, "host %s: %s", d->options->host, ready->obstacles[i]);
	message_free(begin);
	message_free(ready);
	return r < 0 ? err_wrap(err, r, "host %s", d->options->host) : 0;
}

/* ---- files ---- */

static void count_sent(struct departure *d)
{
	uint64_t bytes;

	if (!d->precopy)
		return;
	precopy_count(d->precopy, &bytes, &d->result->rounds);
	d->result->bytes += bytes;
}

/* Gives up the pre-copied memory: everything is sent again. */
static void drop_precopied(struct departure *d, Pbeam__ScipDump__What *what, const char *why)
{
	if (*what != PBEAM__SCIP_DUMP__WHAT__WRITTEN)
		return;
	log_info("migrate: %s: all of their memory is sent again", why);
	*what = PBEAM__SCIP_DUMP__WHAT__ALL;
	d->nprecopied = 0;
	count_sent(d);
	precopy_end(d->precopy); /* tracked memory would not be dumped whole */
	d->precopy = NULL;
}

static void on_note(void *arg, const char *text)
{
	const struct departure *d = arg;
	struct migrate_progress now = {.phase = "frozen"};

	snprintf(now.note, sizeof(now.note), "%s", text);
	if (d->options->progress)
		d->options->progress(d->options->progress_arg, &now);
}

static void on_obstacle(void *arg, const char *text)
{
	migrate_obstacle(arg, "%s", text);
}

static int announce_files(struct departure *d, const struct name_process *processes, size_t n,
			  struct err *err)
{
	int r = files_sender_announce(d->files, d->channel, processes, n, &d->result->bytes, err);

	return r < 0 ? err_wrap(err, r, "migrate vpid %d to %s", d->options->target.n, d->options->host) : 0;
}

/* Announces and sends most files, while the processes run. */
static int begin_files(struct departure *d, struct err *err)
{
	const struct files_options options = {.names = d->source.names,
					      .keeper = d->options->job->keeper,
					      .own_host = d->own_host,
					      .host = d->options->host,
					      .dry_run = d->options->dry_run,
					      .bandwidth = d->options->bandwidth,
					      .obstacle = on_obstacle,
					      .obstacle_arg = &d->source};
	auto_free struct name_process *all = NULL;
	int r = files_sender_new(&d->files, &options, err), n;

	d->source.files = d->files;
	if (r < 0)
		return r;
	n = find_processes(d, &all);
	return n < 0 ? err_code(err, n, "list the processes") : announce_files(d, all, (size_t)n, err);
}

/* Announces the files that were opened since. If only these have other paths on the target, the pre-copied
 * processes cannot be used: they were made without trapping paths. */
static int end_files(struct departure *d, const struct group *group, Pbeam__ScipDump__What *what,
		     struct err *err)
{
	auto_free struct name_process *all = calloc(group->n + 1, sizeof(*all));
	bool other_paths = files_sender_has_other_paths(d->files);
	size_t n = 0;
	int r;

	if (!all)
		return err_code(err, -ENOMEM, "the files");
	for (size_t i = 0; i < group->n; i++)
		if (!group->v[i]->zombie)
			all[n++] =
				(struct name_process){.vpid = group->v[i]->vpid, .rpid = group->v[i]->rpid};
	r = announce_files(d, all, n, err);
	if (r == 0 && !other_paths && files_sender_has_other_paths(d->files))
		drop_precopied(d, what, "their files have other paths there");
	return r;
}

/* ---- frozen ---- */

/* True if so much can be sent while the processes are frozen. */
static bool is_little(const struct departure *d, uint64_t bytes)
{
	const uint64_t pause = d->options->max_pause_ns ? d->options->max_pause_ns : PAUSE_NS;

	return precopy_send_ns(d->precopy, bytes) <= pause / 2;
}

/* Finds the processes that continue in their pre-copied husks. Returns the bytes to be sent of the others. */
static uint64_t find_precopied(struct departure *d, struct group *group)
{
	uint64_t bytes = 0;

	d->nprecopied = 0;
	free(d->precopied);
	d->precopied = calloc(group->n + 1, sizeof(*d->precopied));
	if (d->precopied)
		log_info("migrate: %zu of %zu processes were pre-copied", precopy_match(d->precopy, group),
			 group->n);
	for (size_t i = 0; i < group->n; i++)
		if (d->precopied && group->v[i]->precopied)
			d->precopied[d->nprecopied++] = group->v[i]->vpid.n;
		else if (group_has_contents(group->v[i]))
			bytes += own_bytes(d, group->v[i]->rpid.n);
	return bytes;
}

/* Decides whether to let the processes run once more: new ones have so much memory that the pause would be
 * long. They may end in a moment; those that remain will be pre-copied too. */
static bool is_put_off(struct departure *d, uint64_t bytes)
{
	const uint64_t now = io_now_ns(CLOCK_MONOTONIC);

	if (is_little(d, bytes) || d->beginnings > BEGINNINGS)
		return false;
	d->changed_ns = d->changed_ns ? d->changed_ns : now;
	d->then = d->nprecopied && now - d->changed_ns < PATIENCE_NS ? TRY_AGAIN : PRECOPY_AGAIN;
	if (d->then == PRECOPY_AGAIN && ++d->beginnings > BEGINNINGS)
		d->then = GO_ON;
	return d->then != GO_ON;
}

/* Sends the last round. *what changes to ALL when nothing that was pre-copied is of use. */
static int finish_precopy(struct departure *d, struct group *group, Pbeam__ScipDump__What *what,
			  struct err *err)
{
	int r = 0;

	d->frozen_ns = io_now_ns(CLOCK_MONOTONIC);
	if (d->precopy && is_put_off(d, find_precopied(d, group)))
		return err_set(err, -ESTALE, "the processes have changed");
	d->source.group = group;
	if (d->precopy && d->nprecopied)
		r = precopy_send_last(d->precopy, group, err);
	else
		drop_precopied(d, what, "the processes have changed");
	if (r == 0)
		r = end_files(d, group, what, err);
	return r < 0 ? r : fault_point("migrate-frozen", err);
}

static int send_shared(void *arg, struct shared_object *list, size_t n, struct err *err)
{
	struct departure *d = arg;

	return d->precopy && d->nprecopied ? precopy_send_shared(d->precopy, list, n, err) : 0;
}

static int send_state(struct departure *d, int image, uint64_t bytes, struct err *err)
{
	Pbeam__MigrateState state = PBEAM__MIGRATE_STATE__INIT;
	int r = fault_point("migrate-before-state", err);

	d->stated = true;
	d->result->bytes += bytes;
	if (r < 0)
		return r;
	state.bytes = bytes;
	state.n_precopied = d->nprecopied;
	state.precopied = d->precopied;
	r = wire_send(d->channel, PBEAM__CHANNEL_MESSAGE__MIGRATE_STATE, &state.base, err);
	return r < 0 ? r : wire_send_range(d->channel, image, 0, bytes, "the image", err);
}

static int await_held(struct departure *d, struct err *err)
{
	Pbeam__MigrateHeld *held = NULL;
	int r;

	rpc_set_timeout(d->channel, HELD_S * 1000);
	r = wire_take(d->channel, PBEAM__CHANNEL_MESSAGE__MIGRATE_HELD, &pbeam__migrate_held__descriptor,
		      &held, err);
	if (r == 0)
		r = fault_point("migrate-held", err);
	if (r == 0)
		r = external_held(&d->source, held, err);
	message_free(held);
	return r;
}

/* Sends one request to every living member. */
static int request_all(struct group *group, uint32_t type, struct err *err)
{
	int r;

	for (size_t i = 0; i < group->n; i++)
		if (!group->v[i]->zombie)
			group_ask(group->v[i], type, NULL, NULL, 0);
	r = fault_point("migrate-asked", err);
	if (r < 0)
		return r;
	r = group_gather(group, &pbeam__scip_done__descriptor, ANSWER_MS, err);
	return r < 0 ? r : group_problem(group, err);
}

static int commit_move(struct departure *d, struct group *group, struct err *err)
{
	Pbeam__Place place = PBEAM__PLACE__INIT;
	auto_free int32_t *vpids = calloc(group->n, sizeof(*vpids));
	auto_free bool *stubs = calloc(group->n, sizeof(*stubs));
	const struct record_move move = {.vpids = vpids,
					 .n = group->n,
					 .place = &place,
					 .addresses = d->source.addresses,
					 .naddresses = d->source.naddresses,
					 .stubs = stubs};
	int r;

	if (!vpids || !stubs)
		return -ENOMEM;
	r = fault_point("migrate-before-commit", err);
	if (r < 0)
		return r;
	for (size_t i = 0; i < group->n; i++) {
		vpids[i] = group->v[i]->vpid.n;
		stubs[i] = group->v[i]->stub;
	}
	place.host = (char *)(uintptr_t)d->options->host;
	place.home = (char *)(uintptr_t)(d->options->home ? d->options->home : d->own_host);
	place.stub_host = (char *)(uintptr_t)(d->options->stub ? d->own_host : "");
	d->record.others = d->source.peers;
	d->record.nothers = d->source.npeers;
	r = external_check(&d->source, err);
	return r < 0 ? r : record_commit(&d->record, &move, err);
}

static void mark_source_undecided(void *arg, bool undecided)
{
	const struct departure *d = arg;

	record_mark_undecided(d->source.group, undecided);
	if (undecided)
		migrate_tell_undecided(d->options->progress, d->options->progress_arg, d->options->target);
}

/* After the commit: failures are logged, not returned. True if the target reports that the processes run. */
static bool let_run(struct departure *d)
{
	Pbeam__MigrateDone done = PBEAM__MIGRATE_DONE__INIT;
	struct err err = ERR_INIT;
	int r = fault_point("migrate-committed", &err);

	done.uuid = d->source.uuid;
	if (r == 0)
		r = frame_send(d->channel, PBEAM__CHANNEL_MESSAGE__MIGRATE_COMMIT, &done.base, NULL, 0, &err);
	if (r == 0)
		r = wire_take(d->channel, PBEAM__CHANNEL_MESSAGE__MIGRATE_RUNS, NULL, NULL, &err);
	d->result->pause_ns = io_now_ns(CLOCK_MONOTONIC) - d->frozen_ns;
	if (r == 0)
		(void)!fault_point("migrate-runs", &err);
	else
		log_warn("migrate: host %s has vpid %d but has not reported that it runs: %s",
			 d->options->host, d->options->target.n, err.text);
	return r == 0;
}

/* Sends the image, waits until the target holds the processes, and commits. */
static int send_and_commit(struct departure *d, struct capture *c, uint64_t bytes, struct err *err)
{
	int r = send_state(d, image_writer_fd(c->writer), bytes, err);

	if (r < 0)
		return r;
	r = d->options->flush(d->options->flush_arg, err);
	if (r < 0)
		return r;
	r = await_held(d, err);
	if (r < 0)
		return r;
	r = group_cancelled(&c->group, err);
	if (r < 0)
		return r;
	r = request_all(&c->group, PBEAM__SCIP_REQUEST__SCIP_KEEP, err);
	return r < 0 ? r : commit_move(d, &c->group, err);
}

/* Hands the captured processes over to the target. 0: they have moved. Else they must go on here. */
static int hand_processes_over(struct departure *d, struct capture *c, uint64_t bytes, struct err *err)
{
	struct group *group = &c->group;
	int r = send_and_commit(d, c, bytes, err);
	bool heard;

	if (r < 0)
		return err_wrap(err, r, "migrate vpid %d to %s", d->options->target.n, d->options->host);
	d->committed = d->ended = true;
	d->options->gone(d->options->gone_arg);
	external_source_end(&d->source, true);
	heard = let_run(d);
	files_sender_departed(d->files);
	r = migrate_withdraw(group, d->options->stub, err);
	if (r < 0)
		log_error("migrate: vpid %d runs on %s, but was not removed here: %s", d->options->target.n,
			  d->options->host, err->text);
	(void)!fault_point("migrate-withdrawn", err);
	/* Otherwise the daemons remove the record, once every host that may need it has read it. */
	if (heard && !d->source.unheard)
		record_remove(&d->record);
	/* The processes that stay find the others in /proc (scip/syscall/other_host_proc.c). */
	r = rebuild_diverge(d->source.names, d->options->job->keeper, NULL, NULL);
	if (r < 0)
		log_warn("migrate: processes that stay do not see vpid %d in /proc: %s", d->options->target.n,
			 strerror(-r));
	err_clear(err);
	return 0;
}

/* Undoes an attempt before the processes go on here. */
static void call_off(struct departure *d)
{
	Pbeam__MigrateDone done = PBEAM__MIGRATE_DONE__INIT;

	if (d->then != GO_ON) /* another attempt follows at once */
		return;
	/* The target has not begun to restore: another attempt may follow. */
	if (!d->stated) {
		external_source_end(&d->source, false);
		return;
	}
	done.uuid = d->source.uuid;
	if (frame_send(d->channel, PBEAM__CHANNEL_MESSAGE__MIGRATE_ABORT, &done.base, NULL, 0, NULL) < 0)
		log_debug("migrate: host %s is gone", d->options->host);
	record_remove(&d->record); /* it is not committed: only this coordinator commits it */
	d->options->stay(d->options->flush_arg);
	d->ended = true;
	external_source_end(&d->source, false);
}

/* Sends memory while the processes run. */
static int precopy_processes(struct departure *d, struct err *err)
{
	const struct precopy_options how = {.target = d->options->target,
					    .alone = d->options->alone,
					    .job = d->options->job,
					    .stays = d->options->stays,
					    .stays_arg = d->options->stays_arg,
					    .host = d->options->host,
					    .channel = d->channel,
					    .max_pause_ns = d->options->max_pause_ns,
					    .bandwidth = d->options->bandwidth,
					    .comes_home = d->stub_host[0] &&
							  !strcmp(d->stub_host, d->options->host),
					    .progress = d->options->progress,
					    .progress_arg = d->options->progress_arg};
	int r = fault_point("migrate-before-rounds", err);

	if (r == 0 && !d->precopy)
		r = precopy_begin(&d->precopy, d->source.names, &how, err);
	if (r == 0 && d->precopy)
		r = precopy_send_rounds(d->precopy, err);
	if (r == 0)
		r = fault_point("migrate-after-rounds", err);
	if (r < 0) {
		precopy_end(d->precopy);
		d->precopy = NULL;
		call_off(d);
		return err_wrap(err, r, "migrate vpid %d to %s", d->options->target.n, d->options->host);
	}
	return 0;
}

/* True if little remains to be sent of the processes that were not pre-copied. */
static bool is_stable(const struct departure *d)
{
	auto_free struct name_process *all = NULL;
	int n = find_processes(d, &all);
	uint64_t bytes = 0;

	for (int i = 0; i < n; i++) {
		bool sent = false;

		for (size_t j = 0; j < d->nprecopied && !sent; j++)
			sent = all[i].vpid.n == d->precopied[j];
		bytes += sent ? 0 : own_bytes(d, all[i].rpid.n);
	}
	return is_little(d, bytes);
}

/* Waits until the new processes have ended, or for PATIENCE_NS. */
static void await_stable(struct departure *d, struct err *err)
{
	const bool again = d->then == PRECOPY_AGAIN;

	if (d->then == GO_ON)
		return;
	d->then = GO_ON;
	log_info("migrate: the processes have changed: %s", again ? "pre-copying again" : "trying again");
	err_clear(err);
	if (again) {
		count_sent(d);
		precopy_end(d->precopy);
		d->precopy = NULL;
		d->changed_ns = d->nprecopied = 0;
		return;
	}
	while (!is_stable(d) && io_now_ns(CLOCK_MONOTONIC) - d->changed_ns < PATIENCE_NS)
		nanosleep(&(struct timespec){.tv_nsec = LOOK_NS}, NULL);
}

/* Captures the processes, and hands them over. */
static int capture_and_hand_over(struct departure *d, struct capture *capture, struct capture_result *saved,
				 struct err *err)
{
	Pbeam__ScipDump__What what =
		d->precopy ? PBEAM__SCIP_DUMP__WHAT__WRITTEN : PBEAM__SCIP_DUMP__WHAT__ALL;
	int r = capture_freeze(capture, err);

	if (r < 0)
		return r;
	r = finish_precopy(d, &capture->group, &what, err);
	if (r < 0)
		return r;
	r = capture_dump(capture, what, err);
	if (r < 0)
		return r;
	r = capture_shared(capture, err);
	if (r < 0)
		return r;
	r = capture_objects(capture, err);
	if (r < 0)
		return r;
	r = capture_commit(capture, false, saved, err); /* not synced: the image is only sent */
	return r < 0 ? r : hand_processes_over(d, capture, saved->bytes, err);
}

/* One attempt. On failure the processes go on here. */
static int move_once(struct departure *d, struct capture_result *saved, struct err *err)
{
	const struct migrate_options *options = d->options;
	const struct capture_options how = {.target = options->target,
					    .alone = options->alone,
					    .moves = true,
					    .stays = options->stays,
					    .stays_arg = options->stays_arg,
					    .job = options->job,
					    .console = options->console,
					    .save_files_max = options->save_files_max,
					    .external = &d->external,
					    .shared = send_shared,
					    .shared_arg = d};
	struct capture capture;
	int r = capture_open(&capture, d->source.names, &how, err);

	memset(saved, 0, sizeof(*saved));
	if (r < 0) {
		capture_close(&capture);
		return r;
	}
	r = capture_and_hand_over(d, &capture, saved, err);
	if (r < 0) {
		call_off(d);
		capture_thaw(&capture);
	}
	capture_log(&capture, r < 0 ? "thawed" : "moved");
	capture_close(&capture);
	return r < 0 && !err->text[0] ? err_code(err, r, "checkpoint") : r;
}

/* Repeats attempts while something is under way that refuses the capture. */
static int move_processes(struct departure *d, struct capture_result *saved, struct err *err)
{
	struct capture_retry retry = {.last_ms = RETRY_MS};
	int r;

	do
		r = move_once(d, saved, err);
	while (capture_should_retry(&retry, d->options->target, r, err));
	return r;
}

static int run_migration(struct departure *d, struct err *err)
{
	struct capture_result saved = {0};
	int r = record_prepare(&d->record, d->own_host, d->options->host, err);

	if (r < 0)
		return err_wrap(err, r, "announce the migration");
	d->result->rounds = 1;
	do {
		await_stable(d, err);
		r = precopy_processes(d, err);
		if (r == 0)
			r = move_processes(d, &saved, err);
	} while (r < 0 && d->then != GO_ON);
	if (r < 0 && !d->stated)
		record_remove(&d->record);
	d->result->processes = saved.processes;
	count_sent(d);
	precopy_end(d->precopy);
	free(d->precopied);
	return r;
}

/* Looks up the stub's host: the keeper has it as of the process's arrival, and the stub's parent may have
 * moved since. */
static int look_up_stub(struct departure *d, struct err *err)
{
	char host[64];

	return d->options->stub_host[0] ? record_place(d->options->target.n, host, d->stub_host, NULL, err)
					: 0;
}

/* Does what precedes the migration's record, and is all of a dry run. */
static int prepare_move(struct departure *d, struct err *err)
{
	int r = record_own_host(d->own_host, err);

	if (r < 0)
		return r;
	r = look_up_stub(d, err);
	if (r < 0)
		return r;
	if (!strcmp(d->own_host, d->options->host))
		return err_set(err, -EALREADY, "vpid %d is on %s already", d->options->target.n,
			       d->options->host);
	r = request_consent(d, err);
	if (r < 0)
		return r;
	r = begin_files(d, err);
	return r < 0 ? r : external_prepare(&d->source, err);
}

int migrate_source_run(struct names *names, const struct migrate_options *options,
		       struct migrate_result *result, struct err *err)
{
	struct departure d = {.options = options, .result = result, .channel = -1};
	uint64_t begin_ns = io_now_ns(CLOCK_MONOTONIC);
	int r;

	memset(result, 0, sizeof(*result));
	d.source = (struct migrate_source){.names = names,
					   .job = options->job,
					   .host = options->host,
					   .target = options->target,
					   .dry_run = options->dry_run,
					   .leave_shared = options->leave_shared,
					   .note = on_note,
					   .note_arg = &d};
	d.external = external_of_source(&d.source);
	snprintf(d.source.uuid, sizeof(d.source.uuid), "%s", options->uuid);
	record_init(&d.record, d.source.uuid);
	d.record.undecided = mark_source_undecided;
	d.record.undecided_arg = &d;
	r = prepare_move(&d, err);
	if (r == 0 && !options->dry_run)
		r = run_migration(&d, err);
	if (!d.ended)
		external_source_end(&d.source, false);
	result->obstacles = d.source.obstacles;
	result->nobstacles = d.source.nobstacles;
	if (d.channel >= 0)
		close(d.channel);
	files_sender_free(d.files);
	record_close(&d.record);
	result->total_ns = io_now_ns(CLOCK_MONOTONIC) - begin_ns;
	return r;
}
