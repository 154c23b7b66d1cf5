/*
 * The side where a migration arrives: a restore whose image comes over a channel, and which stops before the
 * processes would run until it is known that they are ours.
 */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/memory.h"
#include "channel/channel.h"
#include "image/store.h"
#include "proto/frame.h"
#include "proto/message.h"
#include "proto/rpc.h"
#include "scip/ends/acceptor.h"
#include "scip/files/files.h"
#include "scip/migrate/address.h"
#include "scip/migrate/cut_external.h"
#include "scip/migrate/cut_join.h"
#include "scip/migrate/external.h"
#include "scip/migrate/migrate.h"
#include "scip/precopy/page_receiver.h"

enum { COMMIT_S = 120, CUT_S = 1800, GONE_LOOKS = 1000, GONE_NAP_NS = 2000000 };

struct arrival {
	const struct migrate_arrival *options;
	struct migrate_target target;
	struct object_external external;
	struct record record;
	bool ours;
	struct precopied *precopied;
	struct files_receiver *files;
	uint8_t *buffer; /* for files that come, of WIRE_PART_MAX bytes */
	struct page_receiver *receiver;
	char path[PATH_MAX];	    /* of a part of a cut */
	Pbeam__MigrateState *state; /* that the final image came with */
};

/* They may have left this host a moment ago, and be ending still. */
static bool is_in_use(const struct arrival *a, struct vpid vpid)
{
	const struct timespec nap = {.tv_nsec = GONE_NAP_NS};
	struct name_process process;

	for (int looks = 0; looks < GONE_LOOKS; looks++) {
		if (names_process_get(a->target.names, vpid, &process) < 0 ||
		    process.state == NAME_STATE_STUB)
			return false;
		nanosleep(&nap, NULL);
	}
	return true;
}

static int check_numbers(const struct arrival *a, struct err *err)
{
	const Pbeam__MigrateBegin *begin = a->options->begin;

	for (size_t i = 0; i < begin->n_vpids; i++)
		if (is_in_use(a, (struct vpid){begin->vpids[i]}))
			return err_set(err, -EEXIST, "vpid %d is in use there by another program",
				       begin->vpids[i]);
	return 0;
}

static int check_host(const struct arrival *a, struct err *err)
{
	return rebuild_check_host(a->options->begin->host, a->options->begin->uid, err);
}

static int check_memory(const struct arrival *a, struct err *err)
{
	uint64_t needed = a->options->begin->memory;
	struct memory_size size;

	memory_size("/proc", &size);
	if (needed <= size.available)
		return 0;
	return err_set(err, -ENOMEM, "it needs %llu MiB of memory, and %llu are free",
		       (unsigned long long)(needed >> 20), (unsigned long long)(size.available >> 20));
}

/* All that can be refused while the processes still run over there. A dry run wants to know all of it. */
static int check(const struct arrival *a, Pbeam__MigrateReady *ready, struct err *err)
{
	static int (*const checks[])(const struct arrival *, struct err *) = {check_host, check_memory,
									      check_numbers};

	for (size_t i = 0; i < sizeof(checks) / sizeof(checks[0]); i++) {
		int r = checks[i](a, err);

		if (r < 0 && (!a->options->begin->dry_run ||
			      message_append_string(&ready->obstacles, &ready->n_obstacles, err->text) < 0))
			return r;
		err_clear(err);
	}
	return 0;
}

static void on_undecided(void *arg, bool undecided)
{
	const struct arrival *a = arg;

	for (size_t i = 0; i < a->target.manifest->n_processes; i++)
		names_process_mark(a->target.names, (struct vpid){a->target.manifest->processes[i]->vpid},
				   undecided);
}

/* Whoever was to tell us does not: is it ours? */
static int ask_registry(struct arrival *a, struct err *err)
{
	(void)!fault_point("migrate-target-asks", NULL); /* late or killed, but it cannot fail */
	if (record_abort(&a->record))
		return 0;
	return err->code ? err->code : err_set(err, -ECANCELED, "the migration was given up");
}

/* They find each other here from their first moment on: what the registry says of it is on its way to our
 * table still, and a signal would be sent to the host that they have left. */
static void places_are_here(const struct arrival *a)
{
	const Pbeam__Manifest *manifest = a->target.manifest;
	char own[NAME_TEXT_MAX];

	if (!names_cluster(a->target.names, own))
		return;
	for (size_t i = 0; manifest && i < manifest->n_processes; i++) {
		const Pbeam__Process *process = manifest->processes[i];

		if (process->state != PBEAM__PROCESS__STATE__STUB &&
		    names_place_set(a->target.names, (struct vpid){process->vpid}, own) < 0)
			log_debug("migrate: vpid %d is found here a little later", process->vpid);
	}
	for (size_t i = 0; a->options->begin->cut && i < a->options->begin->cut->n_stubs; i++) {
		const Pbeam__CutKin *kin = a->options->begin->cut->stubs[i];

		if (names_place_set(a->target.names, (struct vpid){kin->vpid}, kin->host) < 0)
			log_debug("migrate: vpid %d is found a little later", kin->vpid);
	}
}

/* All is made, and held. 0: it is ours, let it run. */
static int on_held(void *arg, struct err *err)
{
	struct arrival *a = arg;
	Pbeam__MigrateHeld *held = message_new(&pbeam__migrate_held__descriptor);
	struct err lost = ERR_INIT;
	int r = held ? external_ready(&a->target, held, err) : -ENOMEM;

	if (r == 0)
		r = fault_point("migrate-target-held", err);
	if (r == 0)
		r = frame_send(a->options->channel, PBEAM__CHANNEL_MESSAGE__MIGRATE_HELD, &held->base, NULL,
			       0, err);
	message_free(held);
	if (r < 0)
		return r;
	r = wire_take(a->options->channel, PBEAM__CHANNEL_MESSAGE__MIGRATE_COMMIT, NULL, NULL, &lost);
	if (r == -ECANCELED)
		return err_set(err, r, "%s", lost.text);
	if (r < 0) {
		log_warn("migrate: vpid %d: %s; the registry is to say whose it is", a->options->begin->root,
			 lost.text);
		err_set(err, r, "%s", lost.text);
		r = ask_registry(a, err);
		if (r == 0)
			err_clear(err);
	}
	a->ours = r == 0;
	if (a->ours)
		places_are_here(a);
	if (a->ours && a->options->ours)
		a->options->ours(a->options->ours_arg);
	if (a->ours)
		external_target_end(&a->target, true);
	return r;
}

static void end_receiver(struct arrival *a)
{
	page_receiver_free(a->receiver);
	a->receiver = NULL;
}

static void drop_precopied(struct arrival *a)
{
	end_receiver(a);
	if (a->precopied)
		precopied_abandon(a->precopied);
	a->precopied = NULL;
}

/* Nobody else has read it: the manifest is ours to change. */
static int localize(const struct arrival *a, struct image_reader *image, bool last, struct err *err)
{
	Pbeam__Manifest *manifest = (Pbeam__Manifest *)(uintptr_t)image_reader_manifest(image);
	int r = files_receiver_localize(a->files, manifest, last, err);

	if (r < 0)
		image_reader_close(image);
	return r;
}

static int open_image(struct arrival *a, const struct frame *frame, struct image_reader **image,
		      struct err *err)
{
	bool last = frame->type == PBEAM__CHANNEL_MESSAGE__MIGRATE_STATE;
	Pbeam__MigrateState *state = (void *)frame_unpack(frame, &pbeam__migrate_state__descriptor, err);
	int r = state ? wire_take_file(a->options->channel, state->bytes, err) : -EPROTO;

	if (r >= 0)
		r = image_reader_open_fd(image, r, "the image that came", err);
	if (last)
		a->state = state;
	else
		message_free(state);
	return r < 0 ? r : localize(a, *image, last, err);
}

/* A part of a cut: as far as this, and on with all others. */
static int on_step(void *arg, struct err *err)
{
	struct arrival *a = arg;
	Pbeam__MigrateDone done = PBEAM__MIGRATE_DONE__INIT;
	int r = frame_send(a->options->channel, PBEAM__CHANNEL_MESSAGE__MIGRATE_CHECKED, &done.base, NULL, 0,
			   err);

	return r < 0 ? r
		     : wire_take(a->options->channel, PBEAM__CHANNEL_MESSAGE__MIGRATE_GO, NULL, NULL, err);
}

static struct rebuild_options restore_options_of(struct arrival *a)
{
	const Pbeam__CutImageName *cut = a->options->begin->cut;

	if (cut)
		return (struct rebuild_options){.path = a->path,
						.force = cut->force,
						.trusted = cut->n_with > 0, /* and verified */
						.console = a->options->console,
						.keeper_socket = a->options->keeper_socket,
						.keeper = a->options->keeper,
						.replace = a->options->replace,
						.signs = a->options->signs,
						.joins = a->options->joins,
						.external = &a->external,
						.step = on_step,
						.held = on_held,
						.held_arg = a};
	return (struct rebuild_options){.path = "what came",
					.console = a->options->console,
					.keeper_socket = a->options->keeper_socket,
					.keeper = a->options->keeper,
					.signs = a->options->signs,
					.trusted = true,
					.joins = a->options->joins,
					.external = &a->external,
					.held = on_held,
					.held_arg = a,
					.precopied = a->precopied,
					.ahead = a->state ? a->state->ahead : NULL,
					.nahead = a->state ? a->state->n_ahead : 0};
}

/* No more than there are processors. */
static uint32_t streams_of_host(uint32_t wanted)
{
	const long processors = sysconf(_SC_NPROCESSORS_ONLN);

	return processors > 0 && wanted > (uint32_t)processors ? (uint32_t)processors : wanted;
}

/* What cannot be made ahead is made when all is here. */
static int take_skeleton(struct arrival *a, const struct frame *frame, struct err *err)
{
	const struct rebuild_options options = restore_options_of(a);
	Pbeam__MigrateReady ready = PBEAM__MIGRATE_READY__INIT;
	uint8_t cookie[CHANNEL_COOKIE_SIZE];
	struct image_reader *image;
	struct err why = ERR_INIT;
	bool more = false;
	int r = open_image(a, frame, &image, err);

	if (r < 0)
		return r;
	drop_precopied(a);
	r = precopied_make(&a->precopied, a->target.names, image, &options, &why);
	if (r < 0)
		log_info("migrate: vpid %d: not made ahead: %s", a->options->begin->root, why.text);
	if (r == 0 && !(a->receiver = page_receiver_new(a->options->channel, a->precopied)))
		return err_code(err, -ENOMEM, "take pages");
	ready.streams = r == 0;
	if (r == 0 && a->options->begin->streams > 1) {
		more = page_receiver_expect(a->receiver, cookie, &why) == 0;
		if (!more)
			log_info("migrate: one stream only: %s", why.text);
	}
	if (more) {
		ready.cookie.data = cookie;
		ready.cookie.len = sizeof(cookie);
		ready.streams = streams_of_host(a->options->begin->streams);
	}
	return frame_send(a->options->channel, PBEAM__CHANNEL_MESSAGE__MIGRATE_READY, &ready.base, NULL, 0,
			  err);
}

/* Everything that comes until the state is here. */
static int take_image(struct arrival *a, struct image_reader **image, struct err *err)
{
	for (;;) {
		struct frame frame = {0};
		bool done = false;
		int r = a->receiver ? page_receiver_wait(a->receiver, err) : 0;

		if (r == 0)
			r = wire_take_any(a->options->channel, &frame, err);
		if (r < 0)
			return r;
		switch (frame.type) {
		case PBEAM__CHANNEL_MESSAGE__MIGRATE_SKELETON:
			r = take_skeleton(a, &frame, err);
			break;
		case PBEAM__CHANNEL_MESSAGE__MIGRATE_PAGES:
		case PBEAM__CHANNEL_MESSAGE__MIGRATE_ROUND:
			r = a->receiver ? page_receiver_take(a->receiver, &frame, err)
					: err_set(err, -EPROTO, "pages came that are not expected");
			break;
		case PBEAM__CHANNEL_MESSAGE__MIGRATE_FILES:
			r = files_receiver_answer(a->files, a->options->channel, &frame, err);
			break;
		case PBEAM__CHANNEL_MESSAGE__MIGRATE_FILE:
			r = files_receiver_take_part(a->files, a->options->channel, &frame, a->buffer, err);
			break;
		case PBEAM__CHANNEL_MESSAGE__MIGRATE_STATE:
			end_receiver(a);
			if (a->options->begin->dry_run)
				r = err_set(err, -EPROTO, "processes came that were not to");
			else
				r = open_image(a, &frame, image, err);
			done = r == 0;
			break;
		default:
			r = err_set(err, -EPROTO, "message %u came when none such was to", frame.type);
			break;
		}
		frame_free(&frame);
		if (r == 0 && done && a->state->n_ahead == 0)
			drop_precopied(a);
		if (r < 0 || done)
			return r;
	}
}

/* Of a host where no part of the job goes. */
static int end_all(struct arrival *a, struct rebuild_result *result, struct err *err)
{
	const struct rebuild_options options = restore_options_of(a);
	int r = wire_take(a->options->channel, PBEAM__CHANNEL_MESSAGE__MIGRATE_STATE, NULL, NULL, err);

	*result = (struct rebuild_result){.root = {a->options->begin->root}};
	return r < 0 ? r : restore_end(a->target.names, &options, err);
}

/* The image of a part is here, and has been asked for by its name. */
static int take_part(struct arrival *a, struct image_reader **image, struct err *err)
{
	const Pbeam__CutImageName *cut = a->options->begin->cut;
	int r = wire_take(a->options->channel, PBEAM__CHANNEL_MESSAGE__MIGRATE_STATE,
			  &pbeam__migrate_state__descriptor, &a->state, err);

	if (r == 0)
		r = store_image_path(cut->name, cut->number, cut->part, a->path, err);
	a->target.links = a->state;
	if (r == 0)
		r = cut->n_with ? cut_join(cut, image, err) : image_reader_open(image, a->path, err);
	if (r < 0 || cut->part != STORE_COPY)
		return r;
	r = address_mark_image((Pbeam__Manifest *)(uintptr_t)image_reader_manifest(*image), err);
	if (r < 0)
		image_reader_close(*image);
	return r;
}

static int restore(struct arrival *a, struct rebuild_result *result, struct err *err)
{
	struct rebuild_options options;
	struct image_reader *image;
	int r = a->options->begin->cut ? take_part(a, &image, err) : take_image(a, &image, err);

	if (r < 0) {
		drop_precopied(a);
		return r;
	}
	options = restore_options_of(a);
	a->target.manifest = image_reader_manifest(image);
	r = external_expect(&a->target, err);
	if (r == 0)
		r = fault_point("migrate-target-state", err);
	if (r == 0) {
		a->precopied = NULL; /* it is taken */
		r = restore_run(a->target.names, image, &options, result, err);
	}
	drop_precopied(a);
	if (!a->ours)
		external_target_end(&a->target, false);
	image_reader_close(image);
	return r;
}

/* Says what stands in the way, or that it may come, and makes room. */
static int make_ready(struct arrival *a, struct err *err)
{
	Pbeam__MigrateReady *ready = message_new(&pbeam__migrate_ready__descriptor);
	char own_host[NAME_TEXT_MAX];
	int r = !ready ? -ENOMEM
		: a->options->begin->cut
			? cut_listen(&a->target, ready, err) /* its image is checked by the restore */
			: check(a, ready, err);

	if (r == 0)
		r = record_own_host(own_host, err);
	if (r == 0)
		r = files_receiver_new(&a->files, a->target.names, a->options->keeper, a->options->begin,
				       own_host, err);
	a->buffer = malloc(WIRE_PART_MAX);
	if (r == 0 && !a->buffer)
		r = err_code(err, -ENOMEM, "make room for what comes");
	if (r == 0)
		r = frame_send(a->options->channel, PBEAM__CHANNEL_MESSAGE__MIGRATE_READY, &ready->base, NULL,
			       0, err);
	message_free(ready);
	return r;
}

/* The other side asks of files, and goes. */
static int pretend(struct arrival *a, struct err *err)
{
	struct image_reader *image;
	int r = take_image(a, &image, err);

	if (r == -EPIPE)
		return err_set(err, -ECANCELED, "nothing was to come");
	return r;
}

int migrate_target_run(struct names *names, const struct migrate_arrival *options,
		       struct rebuild_result *result, struct err *err)
{
	struct arrival a = {.options = options};
	const Pbeam__MigrateBegin *begin = options->begin;
	int r;

	a.target = (struct migrate_target){
		.names = names, .begin = begin, .from = begin->from, .keeper = options->keeper};
	snprintf(a.target.uuid, sizeof(a.target.uuid), "%s", begin->uuid);
	a.external = external_of_target(&a.target);
	record_init(&a.record, begin->uuid);
	a.record.undecided = on_undecided;
	a.record.undecided_arg = &a;
	rpc_set_timeout(options->channel, (begin->cut ? CUT_S : COMMIT_S) * 1000);
	r = make_ready(&a, err);
	if (r == 0)
		r = begin->dry_run		     ? pretend(&a, err)
		    : begin->cut && begin->cut->ends ? end_all(&a, result, err)
						     : restore(&a, result, err);
	if (r == 0) {
		Pbeam__MigrateDone done = PBEAM__MIGRATE_DONE__INIT;

		done.uuid = begin->uuid;
		if (frame_send(options->channel, PBEAM__CHANNEL_MESSAGE__MIGRATE_RUNS, &done.base, NULL, 0,
			       NULL) < 0)
			log_info("migrate: vpid %d runs, and where it comes from is gone", begin->root);
		(void)!fault_point("migrate-target-runs", NULL); /* as in ask_registry() */
	} else if (r != -ECANCELED) {
		rpc_refuse(options->channel, err);
	}
	files_receiver_free(a.files);
	record_close(&a.record);
	acceptor_close(a.target.acceptor);
	message_free(a.state);
	free(a.buffer);
	end_receiver(&a);
	return r;
}
