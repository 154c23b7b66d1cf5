#include "scip/arrival/arrival.h"

#include <errno.h>
#include <stdio.h>

#include "base/fault.h"
#include "base/log.h"
#include "channel/wire.h"
#include "proto/frame.h"
#include "proto/message.h"
#include "proto/rpc.h"
#include "scip/arrival/providers.h"
#include "scip/ends/acceptor.h"

static void mark_undecided(void *arg, bool undecided)
{
	const struct arrival *a = arg;

	for (size_t i = 0; a->target.manifest && i < a->target.manifest->n_processes; i++)
		names_process_mark(a->target.names, (struct vpid){a->target.manifest->processes[i]->vpid},
				   undecided);
}

void arrival_open(struct arrival *a, struct names *names, const struct arrival_options *options,
		  int patience_s)
{
	const Pbeam__MigrateBegin *begin = options->begin;

	*a = (struct arrival){.options = options,
			      .target = {.names = names,
					 .begin = begin,
					 .from = begin->from,
					 .keeper = options->keeper,
					 .channel = options->channel}};
	snprintf(a->target.uuid, sizeof(a->target.uuid), "%s", begin->uuid);
	a->external = external_of_target(&a->target);
	record_init(&a->record, begin->uuid);
	a->record.undecided = mark_undecided;
	a->record.undecided_arg = a;
	rpc_set_timeout(options->channel, patience_s * 1000);
}

int arrival_expect(struct arrival *a, const Pbeam__Manifest *manifest, struct err *err)
{
	int r;

	a->target.manifest = manifest;
	a->expected = true;
	r = external_expect(&a->target, err);
	return r < 0 ? r : fault_point("migrate-target-state", err);
}

static int report_held(struct arrival *a, struct err *err)
{
	Pbeam__MigrateHeld *held = message_new(&pbeam__migrate_held__descriptor);
	int r = held ? external_ready(&a->target, held, err) : err_code(err, -ENOMEM, "report");

	if (r == 0)
		r = fault_point("migrate-target-held", err);
	if (r == 0)
		r = frame_send(a->options->channel, PBEAM__CHANNEL_MESSAGE__MIGRATE_HELD, &held->base, NULL,
			       0, err);
	message_free(held);
	return r;
}

/* Waits for the decision. */
static int await_commit(struct arrival *a, struct err *err)
{
	struct err lost = ERR_INIT;
	int r = wire_take(a->options->channel, PBEAM__CHANNEL_MESSAGE__MIGRATE_COMMIT, NULL, NULL, &lost);

	if (r == 0)
		return 0;
	err_set(err, r, "%s", lost.text);
	if (r == -ECANCELED)
		return r;
	log_warn("migrate: vpid %d: %s; the registry is queried for its host", a->options->begin->root,
		 lost.text);
	(void)!fault_point("migrate-target-asks", NULL); /* delayed or killed here; it cannot fail */
	if (!record_abort(&a->record))
		return r;
	err_clear(err);
	return 0;
}

static void set_place(struct arrival *a, int32_t vpid, const char *host)
{
	if (names_place_set(a->target.names, (struct vpid){vpid}, host) < 0)
		log_debug("migrate: the place of vpid %d is known a little later", vpid);
}

/* The registry's changes are still on their way to this host's table. Until they arrive a signal from here
 * would be sent to the host that the processes have left. */
static void set_places(struct arrival *a)
{
	const Pbeam__Manifest *manifest = a->target.manifest;
	const Pbeam__CutImageName *cut = a->options->begin->cut;
	char own[NAME_TEXT_MAX];

	if (!names_cluster(a->target.names, own))
		return;
	for (size_t i = 0; manifest && i < manifest->n_processes; i++)
		if (manifest->processes[i]->state != PBEAM__PROCESS__STATE__STUB)
			set_place(a, manifest->processes[i]->vpid, own);
	for (size_t i = 0; cut && i < cut->n_stubs; i++)
		set_place(a, cut->stubs[i]->vpid, cut->stubs[i]->host);
}

int arrival_commit(struct arrival *a, struct err *err)
{
	int r = report_held(a, err);

	if (r < 0)
		return r;
	r = await_commit(a, err);
	if (r < 0)
		return r;
	a->committed = true;
	set_places(a);
	if (a->options->ours)
		a->options->ours(a->options->ours_arg);
	external_target_end(&a->target, true);
	return 0;
}

void arrival_finish(struct arrival *a, int r, const struct err *err)
{
	Pbeam__MigrateDone done = PBEAM__MIGRATE_DONE__INIT;

	if (a->expected && !a->committed)
		external_target_end(&a->target, false);
	if (r == 0) {
		done.uuid = a->options->begin->uuid;
		if (frame_send(a->options->channel, PBEAM__CHANNEL_MESSAGE__MIGRATE_RUNS, &done.base, NULL, 0,
			       NULL) < 0)
			log_info("migrate: vpid %d runs; the host that it left is gone",
				 a->options->begin->root);
		(void)!fault_point("migrate-target-runs", NULL); /* killed here; it cannot fail */
	} else if (r != -ECANCELED) {
		rpc_refuse(a->options->channel, err);
	}
	record_close(&a->record);
	acceptor_close(a->target.acceptor);
}
