#include "scip/cut/return_part.h"

#include <errno.h>
#include <limits.h>

#include "channel/wire.h"
#include "image/store.h"
#include "proto/frame.h"
#include "proto/message.h"
#include "scip/arrival/arrival.h"
#include "scip/ends/end_address.h"
#include "scip/rejoin/cut_join.h"
#include "scip/rejoin/cut_provider.h"

/* The other parts may take as long to be verified. */
enum { PATIENCE_S = 1800 };

struct part {
	struct arrival arrival;
	const Pbeam__CutImageName *cut;
	Pbeam__MigrateState *state;
	struct image_reader *image; /* NULL: the job's processes here end */
	char path[PATH_MAX];
	struct rebuild_options options;
	struct rebuild *rebuild;
};

static int announce_ports(struct part *part, struct err *err)
{
	Pbeam__MigrateReady ready = PBEAM__MIGRATE_READY__INIT;
	int r = cut_listen(&part->arrival.target, &ready, err);

	if (r < 0)
		return r;
	return frame_send(part->arrival.options->channel, PBEAM__CHANNEL_MESSAGE__MIGRATE_READY, &ready.base,
			  NULL, 0, err);
}

/* The image of one part, or of several that have become one. */
static int open_part_image(struct part *part, struct err *err)
{
	const Pbeam__CutImageName *cut = part->cut;
	int r = store_image_path(cut->name, cut->number, cut->part, part->path, err);

	if (r < 0)
		return r;
	r = cut->n_with ? cut_join(cut, &part->image, err) : image_reader_open(&part->image, part->path, err);
	if (r < 0) {
		part->image = NULL;
		return r;
	}
	if (cut->part != STORE_COPY)
		return 0;
	return address_mark_image((Pbeam__Manifest *)(uintptr_t)image_reader_manifest(part->image), err);
}

/* Waits for the leader's STATE, by which time the images are here. */
static int take_part_state(struct part *part, struct err *err)
{
	int r = wire_take(part->arrival.options->channel, PBEAM__CHANNEL_MESSAGE__MIGRATE_STATE,
			  &pbeam__migrate_state__descriptor, &part->state, err);

	if (r < 0 || part->cut->ends)
		return r;
	part->arrival.target.links = part->state;
	r = open_part_image(part, err);
	return r < 0 ? r : arrival_expect(&part->arrival, image_reader_manifest(part->image), err);
}

static int open_part_rebuild(struct part *part, struct err *err)
{
	const struct arrival_options *options = part->arrival.options;

	part->options = (struct rebuild_options){.path = part->path,
						 .force = part->cut->force,
						 .old_end_first = part->cut->old_end_first,
						 .trusted = part->cut->n_with > 0, /* cut_join() verifies */
						 .console = options->console,
						 .keeper_socket = options->keeper_socket,
						 .keeper = options->keeper,
						 .replace = options->replace,
						 .part = true,
						 .joins = options->joins,
						 .signs = options->signs,
						 .external = &part->arrival.external};
	return rebuild_open(&part->rebuild, part->arrival.target.names, part->image, &part->options, err);
}

/* Reports that this part has come so far, and waits until all others have. */
static int await_others(struct part *part, struct err *err)
{
	const int channel = part->arrival.options->channel;
	Pbeam__MigrateDone done = PBEAM__MIGRATE_DONE__INIT;
	int r = frame_send(channel, PBEAM__CHANNEL_MESSAGE__MIGRATE_CHECKED, &done.base, NULL, 0, err);

	return r < 0 ? r : wire_take(channel, PBEAM__CHANNEL_MESSAGE__MIGRATE_GO, NULL, NULL, err);
}

static int stop_processes(struct part *part, struct err *err)
{
	int r = rebuild_check(part->rebuild);

	if (r < 0)
		return r;
	r = await_others(part, err);
	if (r < 0)
		return r;
	r = rebuild_stop(part->rebuild);
	return r < 0 ? r : await_others(part, err);
}

static int replace_processes(struct part *part, struct err *err)
{
	int r = rebuild_clear(part->rebuild);

	if (r < 0)
		return r;
	r = rebuild_make(part->rebuild);
	if (r < 0)
		return r;
	r = rebuild_fill(part->rebuild);
	if (r < 0)
		return r;
	r = rebuild_hold(part->rebuild);
	if (r < 0)
		return r;
	r = arrival_commit(&part->arrival, err);
	if (r < 0)
		return r;
	rebuild_commit_part(part->rebuild);
	rebuild_run_committed(part->rebuild);
	return 0;
}

static int restore_part(struct part *part, struct rebuild_result *result, struct err *err)
{
	int r = announce_ports(part, err);

	if (r < 0)
		return r;
	r = take_part_state(part, err);
	if (r < 0)
		return r;
	r = open_part_rebuild(part, err);
	if (r < 0)
		return r;
	r = stop_processes(part, err);
	if (r == 0)
		r = replace_processes(part, err);
	if (r < 0)
		r = rebuild_undo(part->rebuild, r);
	*result = rebuild_result(part->rebuild);
	rebuild_close(part->rebuild);
	return r;
}

int return_part_run(struct names *names, const struct arrival_options *arrival, struct rebuild_result *result,
		    struct err *err)
{
	struct part part = {.cut = arrival->begin->cut};
	int r;

	arrival_open(&part.arrival, names, arrival, PATIENCE_S);
	r = restore_part(&part, result, err);
	if (!part.image)
		result->root = (struct vpid){arrival->begin->root};
	arrival_finish(&part.arrival, r, err);
	if (part.image)
		image_reader_close(part.image);
	message_free(part.state);
	return r;
}
