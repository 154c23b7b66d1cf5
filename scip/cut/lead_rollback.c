/*
 * Rollback to a cut: every part arrives as a migration does (scip/migrate/migrate_target.c), in the keeper
 * that has its job or as a job of its own, and all commit together by one entry of the registry.
 *
 *   the images are brought to where the parts are to be
 *   BEGIN -> READY      all; where each waits for the connections of others
 *   STATE -> CHECKED    every image and every file has been checked; nothing has been changed yet
 *   GO    -> CHECKED    its processes are stopped on all hosts, so that none sees another end
 *   GO    -> HELD       the new processes are whole, connected, held; the old ones still stand by
 *   commit, COMMIT -> RUNS   the old processes are gone
 *
 * HELD is a part's vote. Before the commit any failure, of whatever actor, ends the new processes on all
 * hosts and lets the old ones go on. With --replace the old processes end at the second GO.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fault.h"
#include "base/io.h"
#include "base/log.h"
#include "base/parse.h"
#include "channel/channel.h"
#include "channel/wire.h"
#include "image/image.h"
#include "image/store.h"
#include "proto/frame.h"
#include "proto/message.h"
#include "proto/rpc.h"
#include "scip/arrival/arrival.h"
#include "scip/cut/cut.h"
#include "scip/cut/lead.h"
#include "scip/cut/return.h"
#include "scip/ends/end_tcp.h"

enum { PART_S = 1800 };

/* ---- channels ---- */

static int fail_at_host(const struct returning *returning, int r, struct err *err)
{
	return err_wrap(err, r, "host %s", returning->host);
}

/* The parts with which it has stubs in common, and where these go. */
static int add_relations(const struct returning *v, size_t n, const struct returning *returning,
			 Pbeam__CutImageName *cut)
{
	const Pbeam__CutPart *part = returning->saved;

	for (size_t i = 0; i < part->n_stubs + part->n_guests; i++) {
		bool stub = i < part->n_stubs;
		int32_t vpid = stub ? part->stubs[i] : part->guests[i - part->n_stubs];
		const struct returning *other = return_find_relation(v, n, returning, vpid, !stub);
		Pbeam__CutRelation *relation =
			stub ? message_add(cut, stubs, pbeam__cut_relation__descriptor)
			     : message_add(cut, guests, pbeam__cut_relation__descriptor);

		if (!other)
			return -EBADMSG;
		if (!relation || message_string(&relation->host, other->host) < 0)
			return -ENOMEM;
		relation->vpid = vpid;
	}
	return 0;
}

static int send_begin(const struct lead *lead, const char *uuid, const Pbeam__RollbackRequest *wish,
		      const struct returning *v, size_t n, struct returning *returning, struct err *err)
{
	Pbeam__MigrateBegin *begin = message_new(&pbeam__migrate_begin__descriptor);
	int r = -ENOMEM;

	if (!begin || !(begin->cut = message_new(&pbeam__cut_image_name__descriptor)) ||
	    !(begin->job = message_new(&pbeam__job__descriptor)) || message_string(&begin->uuid, uuid) < 0 ||
	    message_string(&begin->job->uuid, returning->saved->job->uuid) < 0 ||
	    message_string(&begin->job->name, returning->saved->job->name) < 0 ||
	    message_string(&begin->home, returning->home) < 0 ||
	    message_string(&begin->from, lead->own) < 0 ||
	    message_string(&begin->cut->name, lead->name) < 0) {
		err_code(err, r, "begin");
		goto out;
	}
	r = add_relations(v, n, returning, begin->cut);
	begin->root = returning->saved->vpid;
	begin->revive = returning->revive && return_is_first(returning);
	begin->stubs = returning->saved->n_stubs > 0;
	begin->cut->number = lead->number;
	begin->cut->part = returning->saved->index;
	begin->cut->ends = returning->ends;
	for (size_t i = 0; i < returning->nwith && r == 0; i++)
		r = message_append_u32(&begin->cut->with, &begin->cut->n_with, returning->with[i]);
	begin->cut->force = wish->force;
	begin->cut->old_end_first = wish->replace;
	if (r < 0) {
		err_code(err, r, "begin");
		goto out;
	}
	r = returning->channel =
		channel_open(returning->host, PBEAM__CHANNEL_KIND__CHANNEL_MIGRATE, NULL, err);
	if (r >= 0)
		rpc_set_timeout(returning->channel, PART_S * 1000);
	if (r >= 0)
		r = frame_send(returning->channel, PBEAM__CHANNEL_MESSAGE__MIGRATE_BEGIN, &begin->base, NULL,
			       0, err);
out:
	message_free(begin);
	return r < 0 ? fail_at_host(returning, r, err) : 0;
}

static int begin_rollback(const struct lead *lead, const char *uuid, const Pbeam__RollbackRequest *wish,
			  struct returning *v, size_t n, struct err *err)
{
	int r = 0;

	for (size_t i = 0; i < n && r == 0; i++)
		r = send_begin(lead, uuid, wish, v, n, &v[i], err);
	for (size_t i = 0; i < n && r == 0; i++) {
		r = wire_take(v[i].channel, PBEAM__CHANNEL_MESSAGE__MIGRATE_READY,
			      &pbeam__migrate_ready__descriptor, &v[i].ready, err);
		if (r < 0)
			fail_at_host(&v[i], r, err);
	}
	return r;
}

static int send_to_all(const struct returning *v, size_t n, const char *uuid, uint32_t type, struct err *err)
{
	Pbeam__MigrateDone message = PBEAM__MIGRATE_DONE__INIT;
	int r = 0;

	message.uuid = (char *)(uintptr_t)uuid;
	for (size_t i = 0; i < n && r == 0; i++) {
		r = frame_send(v[i].channel, type, &message.base, NULL, 0, err);
		if (r < 0)
			fail_at_host(&v[i], r, err);
	}
	return r;
}

static int await_all(const struct returning *v, size_t n, uint32_t answer, struct err *err)
{
	int r = 0;

	for (size_t i = 0; i < n && r == 0; i++) {
		r = wire_take(v[i].channel, answer, NULL, NULL, err);
		if (r < 0)
			fail_at_host(&v[i], r, err);
	}
	return r;
}

/* Stops the old processes on all hosts, then has the new ones made. */
static int replace_all(const struct returning *v, size_t n, const char *uuid, struct err *err)
{
	int r = await_all(v, n, PBEAM__CHANNEL_MESSAGE__MIGRATE_CHECKED, err);

	if (r == 0)
		r = send_to_all(v, n, uuid, PBEAM__CHANNEL_MESSAGE__MIGRATE_GO, err);
	if (r == 0)
		r = await_all(v, n, PBEAM__CHANNEL_MESSAGE__MIGRATE_CHECKED, err);
	if (r == 0)
		r = fault_point("cut-lead-stopped", err);
	if (r == 0)
		r = send_to_all(v, n, uuid, PBEAM__CHANNEL_MESSAGE__MIGRATE_GO, err);
	return r < 0 ? r : await_all(v, n, PBEAM__CHANNEL_MESSAGE__MIGRATE_HELD, err);
}

/* ---- the one point ---- */

/* Each part is one move. So is each process whose stub is in another part, since its place names the stub's
 * host. */
static size_t count_moves(const struct returning *v, size_t n)
{
	size_t moves = 0;

	for (size_t i = 0; i < n; i++)
		moves += 1 + v[i].saved->n_guests;
	return moves;
}

static bool is_guest_of_part(const Pbeam__CutPart *part, int32_t vpid)
{
	for (size_t i = 0; i < part->n_guests; i++)
		if (part->guests[i] == vpid)
			return true;
	return false;
}

static struct record_move *add_moves(const struct returning *v, size_t n, const struct returning *part,
				     Pbeam__Place *place, struct record_move *move)
{
	const Pbeam__CutPart *saved = part->saved;
	size_t kept = 0;

	pbeam__place__init(place);
	place->host = (char *)(uintptr_t)part->host;
	place->home = (char *)(uintptr_t)part->home;
	for (size_t i = 0; i < saved->n_guests; i++) {
		Pbeam__Place *own = place + 1 + i;

		*own = *place;
		own->stub_host =
			(char *)(uintptr_t)return_find_relation(v, n, part, saved->guests[i], true)->host;
		*move++ = (struct record_move){.vpids = &saved->guests[i], .n = 1, .place = own};
	}
	for (size_t i = 0; i < saved->n_vpids; i++)
		if (!is_guest_of_part(saved, saved->vpids[i]))
			saved->vpids[kept++] = saved->vpids[i];
	*move++ = (struct record_move){.vpids = saved->vpids, .n = kept, .place = place};
	return move;
}

/* A part whose coordinator has been killed since its vote could not continue its bridges. */
static int check_all_hold(const struct returning *v, size_t n, struct err *err)
{
	for (size_t i = 0; i < n; i++) {
		struct pollfd poll_fd = {.fd = v[i].channel, .events = POLLIN};

		if (poll(&poll_fd, 1, 0) != 0)
			return fail_at_host(
				&v[i], err_set(err, -ECONNRESET, "the part was given up before the commit"),
				err);
	}
	return 0;
}

static int commit_rollback(const struct lead *lead, struct record *record, const struct returning *v,
			   size_t n, struct err *err)
{
	size_t nmoves = count_moves(v, n), at = 0;
	auto_free struct record_move *moves = calloc(nmoves + 1, sizeof(*moves));
	auto_free Pbeam__Place *places = calloc(nmoves + 1, sizeof(*places));
	struct names *names = NULL;
	int r = moves && places ? names_open(&names, err) : err_code(err, -ENOMEM, "commit");

	for (size_t i = 0; i < n && r == 0; i++)
		if (!v[i].ends)
			at = (size_t)(add_moves(v, n, &v[i], &places[at], &moves[at]) - moves);
	if (r == 0)
		r = fault_point("cut-lead-before-commit", err);
	if (r == 0)
		r = check_all_hold(v, n, err);
	if (r == 0)
		r = record_commit_all(record, names, moves, at, err);
	if (names)
		names_close(names);
	return r;
}

static void abort_all(const struct returning *v, size_t n, const char *uuid)
{
	Pbeam__MigrateDone done = PBEAM__MIGRATE_DONE__INIT;

	done.uuid = (char *)(uintptr_t)uuid;
	for (size_t i = 0; i < n; i++)
		if (v[i].channel >= 0 && frame_send(v[i].channel, PBEAM__CHANNEL_MESSAGE__MIGRATE_ABORT,
						    &done.base, NULL, 0, NULL) < 0)
			log_debug("host %s is gone", v[i].host);
}

/* All parts are back: a part that does not receive the message reads the registry. */
static int tell_committed(const struct returning *v, size_t n, const char *uuid, struct err *err)
{
	int r = fault_point("cut-lead-committed", err);

	if (r == 0)
		r = send_to_all(v, n, uuid, PBEAM__CHANNEL_MESSAGE__MIGRATE_COMMIT, err);
	return r < 0 ? r : await_all(v, n, PBEAM__CHANNEL_MESSAGE__MIGRATE_RUNS, err);
}

static int bring_back(const struct lead *lead, struct returning *v, size_t n,
		      const Pbeam__RollbackRequest *wish, struct err *err)
{
	struct record record;
	char uuid[40];
	int r = io_make_uuid(uuid);

	if (r < 0)
		return err_code(err, r, "make a name for the rollback");
	record_init(&record, uuid);
	r = record_prepare(&record, lead->own, lead->name, err);
	if (r == 0)
		r = begin_rollback(lead, uuid, wish, v, n, err);
	if (r == 0)
		r = return_connect(lead, v, n, err);
	if (r == 0)
		r = replace_all(v, n, uuid, err);
	if (r == 0)
		r = commit_rollback(lead, &record, v, n, err);
	if (r < 0) {
		abort_all(v, n, uuid);
	} else {
		struct err late = ERR_INIT;

		if (tell_committed(v, n, uuid, &late) < 0)
			log_warn("%s: %s", lead->name, late.text);
		else
			record_remove(&record);
	}
	if (r < 0)
		record_remove(&record);
	record_close(&record);
	return r;
}

/* ---- afterwards ---- */

/* Where a part was alive on a host that it is to leave: as any process that moves. */
static void move_on(const struct returning *v, size_t n, Pbeam__RollbackReply *done)
{
	for (size_t i = 0; i < n; i++) {
		Pbeam__MigrateRequest request = PBEAM__MIGRATE_REQUEST__INIT;
		Pbeam__Target target = PBEAM__TARGET__INIT;
		struct err err = ERR_INIT;
		void *reply;

		if (!v[i].then[0])
			continue;
		target.vpid = v[i].saved->vpid;
		request.target = &target;
		request.host = (char *)(uintptr_t)v[i].then;
		reply = lead_ask(PBEAM__DAEMON_REQUEST__DAEMON_MIGRATE, &request.base,
				 &pbeam__migrate_reply__descriptor, &err);
		message_free(reply);
		if (reply)
			continue;
		err_wrap(&err, err.code, "vpid %d was rolled back on %s and stays there", target.vpid,
			 v[i].host);
		if (message_append_string(&done->notes, &done->n_notes, err.text) < 0)
			log_error("%s", err.text);
	}
}

static void answer_rollback(struct lead *lead, const struct returning *v, size_t n, const char *path,
			    uint64_t begin_ns)
{
	Pbeam__RollbackReply *done = message_new(&pbeam__rollback_reply__descriptor);
	struct err err = ERR_INIT;

	lead->answered = true;
	if (!done || message_string(&done->path, path) < 0) {
		log_error("%s: no memory for the answer", lead->name);
		return;
	}
	return_drop_copies(lead);
	move_on(v, n, done);
	done->vpid = v[0].saved->vpid;
	for (size_t i = 0; i < n; i++)
		done->processes += v[i].saved->processes;
	done->total_ns = io_now_ns(CLOCK_MONOTONIC) - begin_ns;
	if (frame_send(lead->user, PBEAM__RPC__RPC_REPLY, &done->base, NULL, 0, &err) < 0)
		log_info("rolled back, and the client has left: %s", err.text);
	message_free(done);
}

/* The image of one host: the keeper there restores it, or a new keeper. */
static int in_place(struct lead *lead, const Pbeam__RollbackRequest *wish, bool of_copy, struct err *err)
{
	Pbeam__RollbackRequest request = *wish;
	Pbeam__Target target = PBEAM__TARGET__INIT;
	Pbeam__RollbackReply *done;
	uint64_t vpid;

	if (lead->vpid)
		target.vpid = lead->vpid;
	else if (parse_number(lead->name, 1, INT32_MAX, &vpid, NULL) == 0)
		target.vpid = (int32_t)vpid;
	else
		target.name = lead->name;
	request.target = &target;
	request.number = lead->number;
	request.host = (char *)(uintptr_t) "";
	request.in_place = true;
	request.of_copy = of_copy;
	done = lead_ask(PBEAM__DAEMON_REQUEST__DAEMON_ROLLBACK, &request.base,
			&pbeam__rollback_reply__descriptor, err);
	if (!done)
		return err->code;
	lead->answered = true;
	return_drop_copies(lead);
	if ((of_copy && message_string(&done->path, lead->chosen->copies[0]->path) < 0) ||
	    frame_send(lead->user, PBEAM__RPC__RPC_REPLY, &done->base, NULL, 0, NULL) < 0)
		log_info("rolled back, and the client has left");
	message_free(done);
	return 0;
}

/* Its processes are in the list. */
static bool has_answered(const struct lead *lead, const char *host)
{
	for (size_t i = 0; i < lead->processes->n_missing; i++)
		if (!strcmp(lead->processes->missing[i], host))
			return false;
	return lead_host_is_up(lead, host);
}

/* A process on a lost host may still run there: it would run twice. */
static int check_ended(const struct lead *lead, struct err *err)
{
	struct vpid vpid = {lead->chosen->root};
	struct names *names = NULL;
	char host[NAME_TEXT_MAX];
	int r = names_open(&names, err);
	bool lost = r == 0 && names_place_find(names, vpid, host) == 0 && !has_answered(lead, host);

	if (names)
		names_close(names);
	return lost ? err_set(err, -EHOSTUNREACH,
			      "vpid %d may run on host %s, which does not answer; if it is lost for good: "
			      "pbeamctl hosts --remove %s",
			      vpid.n, host, host)
		    : r;
}

static int roll_back(struct lead *lead, const Pbeam__RollbackRequest *wish, const Pbeam__Cut *cut,
		     struct err *err)
{
	const char *path = lead->chosen->copies[0]->path;
	uint64_t begin_ns = io_now_ns(CLOCK_MONOTONIC);
	struct returning *v;
	size_t n;
	int r = return_place(lead, cut, wish, &v, &n, err);

	for (size_t i = 0; i < n && r == 0; i++)
		if (!v[i].ends)
			r = return_bring_images(lead, &v[i], err);
	if (r == 0)
		r = bring_back(lead, v, n, wish, err);
	if (r == 0)
		answer_rollback(lead, v, n, path, begin_ns);
	return_free(v, n);
	return r;
}

static int roll_back_cut(struct lead *lead, const Pbeam__RollbackRequest *wish, struct err *err)
{
	struct image_reader *manifest = NULL;
	char path[PATH_MAX];
	int r = return_find_cut(lead, path, &manifest, err);

	if (r == 0)
		r = roll_back(lead, wish, image_reader_manifest(manifest)->cut, err);
	if (manifest)
		image_reader_close(manifest);
	return r;
}

static bool runs_elsewhere(const struct lead *lead)
{
	for (size_t i = 0; i < lead->processes->n_processes; i++) {
		const Pbeam__ProcessInfo *info = lead->processes->processes[i];

		if (!strcmp(info->job_uuid, lead->uuid) && strcmp(info->host, lead->at) != 0)
			return true;
	}
	return false;
}

/* The image of one host, of a job that is, or was, on it or on another. */
static int roll_back_alone(struct lead *lead, const Pbeam__RollbackRequest *wish, struct err *err)
{
	bool of_run = lead->vpid && !strcmp(lead->chosen->job, lead->uuid);
	char path[PATH_MAX];
	int r = lead->vpid ? 0 : check_ended(lead, err);

	if (r < 0)
		return r;
	if (lead->vpid && !of_run && wish->n_on)
		return err_set(err, -EINVAL, "checkpoint %u is of an earlier run; leave out --on",
			       lead->number);
	if (!wish->n_on && return_has_copy(lead->chosen, lead->vpid ? lead->at : lead->own) &&
	    !(of_run && runs_elsewhere(lead)))
		return in_place(lead, wish, false, err);
	if (lead->vpid && !of_run) {
		r = return_bring_copy(lead, err);
		return r < 0 ? r : in_place(lead, wish, true, err);
	}
	r = return_find_alone(lead, path, err);
	return r < 0 ? r : roll_back(lead, wish, lead->alone, err);
}

int lead_rollback(struct lead *lead, const Pbeam__RollbackRequest *wish, struct err *err)
{
	int r = return_choose(lead, wish, err);

	if (r == 0)
		r = lead->chosen->cut ? roll_back_cut(lead, wish, err) : roll_back_alone(lead, wish, err);
	return_drop_copies(lead);
	return r < 0 && err->text[0] && lead->name[0] ? err_wrap(err, r, "%s", lead->name) : r;
}
