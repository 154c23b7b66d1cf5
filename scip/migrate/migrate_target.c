/*
 * The host where a migration arrives: a restore whose image comes over a channel, and whose processes are
 * held until the migration is committed. receive_processes() is the whole sequence.
 */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/host_memory.h"
#include "base/log.h"
#include "channel/channel.h"
#include "proto/frame.h"
#include "proto/message.h"
#include "scip/arrival/arrival.h"
#include "scip/files/files.h"
#include "scip/migrate/migrate.h"
#include "scip/precopy/page_receiver.h"
#include "scip/rebuild/precopied.h"

enum { COMMIT_S = 120, GONE_LOOKS = 1000, GONE_NAP_NS = 2000000 };

/* What has arrived so far. */
struct incoming {
	struct arrival arrival;
	struct files_receiver *files;
	uint8_t *buffer; /* WIRE_PART_MAX bytes, for files */
	struct precopied *precopied;
	struct page_receiver *receiver;
	Pbeam__MigrateState *state; /* came with the final image */
	struct image_reader *image; /* the final one */
	struct rebuild_options options;
	struct rebuild *rebuild;
};

/* ---- what can be refused before anything is sent ---- */

/* Waits a while: processes that have just left this host may still be ending. */
static bool number_is_used(const struct incoming *in, struct vpid vpid)
{
	const struct timespec nap = {.tv_nsec = GONE_NAP_NS};
	struct name_process process;

	for (int looks = 0; looks < GONE_LOOKS; looks++) {
		if (names_process_get(in->arrival.target.names, vpid, &process) < 0 ||
		    process.state == NAME_STATE_STUB)
			return false;
		nanosleep(&nap, NULL);
	}
	return true;
}

static int check_numbers(const struct incoming *in, struct err *err)
{
	const Pbeam__MigrateBegin *begin = in->arrival.options->begin;

	for (size_t i = 0; i < begin->n_vpids; i++)
		if (number_is_used(in, (struct vpid){begin->vpids[i]}))
			return err_set(err, -EEXIST, "vpid %d is in use there by another program",
				       begin->vpids[i]);
	return 0;
}

static int check_host(const struct incoming *in, struct err *err)
{
	return rebuild_check_host(in->arrival.options->begin->host, in->arrival.options->begin->uid, err);
}

static int check_memory(const struct incoming *in, struct err *err)
{
	uint64_t needed = in->arrival.options->begin->memory;
	struct host_memory size;

	host_memory_size("/proc", &size);
	if (needed <= size.available)
		return 0;
	return err_set(err, -ENOMEM, "it needs %llu MiB of memory, and %llu are free",
		       (unsigned long long)(needed >> 20), (unsigned long long)(size.available >> 20));
}

/* Refuses what can be refused while the processes still run on their host. A dry run collects every obstacle.
 */
static int check_arrival(const struct incoming *in, Pbeam__MigrateReady *ready, struct err *err)
{
	static int (*const checks[])(const struct incoming *, struct err *) = {check_host, check_memory,
									       check_numbers};

	for (size_t i = 0; i < sizeof(checks) / sizeof(checks[0]); i++) {
		int r = checks[i](in, err);

		if (r < 0 && (!in->arrival.options->begin->dry_run ||
			      message_append_string(&ready->obstacles, &ready->n_obstacles, err->text) < 0))
			return r;
		err_clear(err);
	}
	return 0;
}

/* Reports that the processes may come, or what stands in the way. */
static int make_ready(struct incoming *in, struct err *err)
{
	const struct arrival_options *options = in->arrival.options;
	Pbeam__MigrateReady *ready = message_new(&pbeam__migrate_ready__descriptor);
	char own_host[NAME_TEXT_MAX];
	int r = ready ? check_arrival(in, ready, err) : err_code(err, -ENOMEM, "prepare");

	if (r == 0)
		r = record_own_host(own_host, err);
	if (r == 0)
		r = files_receiver_new(&in->files, in->arrival.target.names, options->keeper, options->begin,
				       own_host, err);
	in->buffer = malloc(WIRE_PART_MAX);
	if (r == 0 && !in->buffer)
		r = err_code(err, -ENOMEM, "prepare");
	if (r == 0)
		r = frame_send(options->channel, PBEAM__CHANNEL_MESSAGE__MIGRATE_READY, &ready->base, NULL, 0,
			       err);
	message_free(ready);
	return r;
}

/* ---- images ---- */

/* Changes the paths in the manifest in place; nothing else has read it yet. */
static int localize_manifest(const struct incoming *in, struct image_reader *image, bool last,
			     struct err *err)
{
	Pbeam__Manifest *manifest = (Pbeam__Manifest *)(uintptr_t)image_reader_manifest(image);
	int r = files_receiver_localize(in->files, manifest, last, err);

	if (r < 0)
		image_reader_close(image);
	return r;
}

static int receive_image(struct incoming *in, const Pbeam__MigrateState *state, bool last,
			 struct image_reader **image, struct err *err)
{
	int r = state ? wire_take_file(in->arrival.options->channel, state->bytes, err) : -EPROTO;

	if (r < 0)
		return r;
	r = image_reader_open_fd(image, r, "the received image", err);
	return r < 0 ? r : localize_manifest(in, *image, last, err);
}

static struct rebuild_options make_options(const struct incoming *in)
{
	const struct arrival_options *options = in->arrival.options;

	return (struct rebuild_options){.path = "the received image",
					.console = options->console,
					.keeper_socket = options->keeper_socket,
					.keeper = options->keeper,
					.signs = options->signs,
					.trusted = true,
					.joins = options->joins,
					.external = &in->arrival.external};
}

/* ---- pre-copied processes ---- */

static void end_receiver(struct incoming *in)
{
	page_receiver_free(in->receiver);
	in->receiver = NULL;
}

static void abandon_precopied(struct incoming *in)
{
	end_receiver(in);
	if (in->precopied)
		precopied_abandon(in->precopied);
	in->precopied = NULL;
}

/* No more streams than processors. */
static uint32_t limit_streams(uint32_t wanted)
{
	const long processors = sysconf(_SC_NPROCESSORS_ONLN);

	return processors > 0 && wanted > (uint32_t)processors ? (uint32_t)processors : wanted;
}

/* True if further streams can connect with this cookie. */
static bool expect_streams(struct incoming *in, uint8_t cookie[CHANNEL_COOKIE_SIZE])
{
	struct err why = ERR_INIT;

	if (in->arrival.options->begin->streams <= 1)
		return false;
	if (page_receiver_expect(in->receiver, cookie, &why) == 0)
		return true;
	log_info("migrate: one stream only: %s", why.text);
	return false;
}

/* Processes that cannot be pre-copied are made when the final image is here. */
static int take_skeleton(struct incoming *in, const struct frame *frame, struct err *err)
{
	const struct arrival_options *options = in->arrival.options;
	const struct rebuild_options how = make_options(in);
	Pbeam__MigrateState *state = (void *)frame_unpack(frame, &pbeam__migrate_state__descriptor, err);
	Pbeam__MigrateReady ready = PBEAM__MIGRATE_READY__INIT;
	uint8_t cookie[CHANNEL_COOKIE_SIZE];
	struct image_reader *image;
	struct err why = ERR_INIT;
	int r = receive_image(in, state, false, &image, err);

	message_free(state);
	if (r < 0)
		return r;
	abandon_precopied(in);
	r = precopied_make(&in->precopied, in->arrival.target.names, image, &how, &why);
	if (r < 0) {
		log_info("migrate: vpid %d: not pre-copied: %s", options->begin->root, why.text);
	} else {
		in->receiver = page_receiver_new(options->channel, in->precopied);
		if (!in->receiver)
			return err_code(err, -ENOMEM, "receive pages");
		ready.streams = 1;
		if (expect_streams(in, cookie)) {
			ready.cookie = (ProtobufCBinaryData){sizeof(cookie), cookie};
			ready.streams = limit_streams(options->begin->streams);
		}
	}
	return frame_send(options->channel, PBEAM__CHANNEL_MESSAGE__MIGRATE_READY, &ready.base, NULL, 0, err);
}

static int take_final_image(struct incoming *in, const struct frame *frame, struct err *err)
{
	int r;

	end_receiver(in);
	if (in->arrival.options->begin->dry_run)
		return err_set(err, -EPROTO, "unexpected processes in a dry run");
	in->state = (void *)frame_unpack(frame, &pbeam__migrate_state__descriptor, err);
	r = receive_image(in, in->state, true, &in->image, err);
	if (r < 0) {
		in->image = NULL;
		return r;
	}
	if (in->state->n_precopied == 0)
		abandon_precopied(in);
	return 0;
}

static int receive_frame(struct incoming *in, const struct frame *frame, struct err *err)
{
	const int channel = in->arrival.options->channel;

	switch (frame->type) {
	case PBEAM__CHANNEL_MESSAGE__MIGRATE_SKELETON:
		return take_skeleton(in, frame, err);
	case PBEAM__CHANNEL_MESSAGE__MIGRATE_PAGES:
	case PBEAM__CHANNEL_MESSAGE__MIGRATE_ROUND:
		return in->receiver ? page_receiver_take(in->receiver, frame, err)
				    : err_set(err, -EPROTO, "unexpected pages");
	case PBEAM__CHANNEL_MESSAGE__MIGRATE_FILES:
		return files_receiver_answer(in->files, channel, frame, err);
	case PBEAM__CHANNEL_MESSAGE__MIGRATE_FILE:
		return files_receiver_take_part(in->files, channel, frame, in->buffer, err);
	case PBEAM__CHANNEL_MESSAGE__MIGRATE_STATE:
		return take_final_image(in, frame, err);
	default:
		return err_set(err, -EPROTO, "unexpected message %u", frame->type);
	}
}

/* Pre-copied processes and files, until the final image is here. */
static int take_until_state(struct incoming *in, struct err *err)
{
	while (!in->image) {
		struct frame frame = {0};
		int r = in->receiver ? page_receiver_wait(in->receiver, err) : 0;

		if (r == 0)
			r = wire_take_any(in->arrival.options->channel, &frame, err);
		if (r < 0)
			return r;
		r = receive_frame(in, &frame, err);
		frame_free(&frame);
		if (r < 0)
			return r;
	}
	return 0;
}

/* ---- the sequence ---- */

static int open_rebuild(struct incoming *in, struct err *err)
{
	int r = arrival_expect(&in->arrival, image_reader_manifest(in->image), err);

	if (r < 0)
		return r;
	in->options = make_options(in);
	in->options.precopied = in->precopied;
	in->options.precopied_vpids = in->state->precopied;
	in->options.nprecopied = in->state->n_precopied;
	in->precopied = NULL; /* taken */
	return rebuild_open(&in->rebuild, in->arrival.target.names, in->image, &in->options, err);
}

/* Until the commit a failure leaves nothing of the processes here. */
static int make_processes(struct incoming *in, struct err *err)
{
	int r = rebuild_check(in->rebuild);

	if (r < 0)
		return r;
	r = rebuild_stop(in->rebuild);
	if (r < 0)
		return r;
	r = rebuild_make(in->rebuild);
	if (r < 0)
		return r;
	r = rebuild_fill(in->rebuild);
	if (r < 0)
		return r;
	r = rebuild_hold(in->rebuild);
	if (r < 0)
		return r;
	r = arrival_commit(&in->arrival, err);
	if (r < 0)
		return r;
	rebuild_run_committed(in->rebuild);
	return 0;
}

static int receive_processes(struct incoming *in, struct rebuild_result *result, struct err *err)
{
	int r = make_ready(in, err);

	if (r < 0)
		return r;
	r = take_until_state(in, err);
	if (r == -EPIPE && in->arrival.options->begin->dry_run)
		return err_set(err, -ECANCELED, "the dry run has ended");
	if (r < 0)
		return r;
	r = open_rebuild(in, err);
	if (r < 0)
		return r;
	r = make_processes(in, err);
	if (r < 0)
		r = rebuild_undo(in->rebuild, r);
	*result = rebuild_result(in->rebuild);
	rebuild_close(in->rebuild);
	return r;
}

int migrate_target_run(struct names *names, const struct arrival_options *options,
		       struct rebuild_result *result, struct err *err)
{
	struct incoming in = {0};
	int r;

	arrival_open(&in.arrival, names, options, COMMIT_S);
	r = receive_processes(&in, result, err);
	abandon_precopied(&in);
	arrival_finish(&in.arrival, r, err);
	if (in.image)
		image_reader_close(in.image);
	files_receiver_free(in.files);
	message_free(in.state);
	free(in.buffer);
	return r;
}
