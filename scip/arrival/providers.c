/* The table of providers (scip/ends/external.h), and the coordinators' way through it. */
#include "scip/arrival/providers.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "proto/message.h"
#include "scip/bridge/bridge_provider.h"
#include "scip/ends/end_address.h"
#include "scip/files/files.h"
#include "scip/reconnect/reconnect_provider.h"
#include "scip/rejoin/cut_provider.h"

/* The first provider that claims a description handles it. Connections that can be made again come first,
 * then those that need a bridge, then those that are closed. */
static const struct external_provider *const external_table[] = {
	&reconnect_provider, &bridge_provider,	   &left_provider,  &address_provider,
	&cut_provider,	     &cut_stream_provider, &pidfd_provider, NULL,
};

_Static_assert(sizeof(external_table) / sizeof(external_table[0]) <= EXTERNAL_PROVIDERS_MAX + 1,
	       "every provider has a state");

/* ---- source ---- */

int external_prepare(struct migrate_source *source, struct err *err)
{
	int r = 0;

	for (size_t i = 0; external_table[i] && r >= 0; i++)
		if (external_table[i]->prepare)
			r = external_table[i]->prepare(source, &source->state[i], err);
	return r < 0 ? r : 0;
}

static int source_survey(void *arg, struct object_dump *dump, struct err *err)
{
	struct migrate_source *source = arg;
	int r = 0;

	for (size_t i = 0; external_table[i] && r >= 0; i++)
		if (external_table[i]->claim)
			r = external_table[i]->claim(source, &source->state[i], dump, err);
	return r < 0 ? r : 0;
}

static int source_dump(void *arg, struct object_dump *dump, const struct object_source *of,
		       Pbeam__Object *out, struct err *err)
{
	struct migrate_source *source = arg;
	int r = 0;

	for (size_t i = 0; external_table[i] && r == 0; i++)
		if (external_table[i]->dump)
			r = external_table[i]->dump(source, &source->state[i], dump, of, out, err);
	return r;
}

static uint64_t source_file_limit(void *arg, const struct stat *st, uint64_t max)
{
	const struct migrate_source *source = arg;

	return source->files ? files_sender_limit(source->files, st, max) : max;
}

struct object_external external_of_source(struct migrate_source *source)
{
	return (struct object_external){
		.arg = source, .survey = source_survey, .dump = source_dump, .file_limit = source_file_limit};
}

/* Returns what the provider's `ready` has sent; empty if it has sent nothing. */
static const ProtobufCBinaryData *rendezvous_of(const Pbeam__MigrateHeld *held,
						const struct external_provider *provider)
{
	static const ProtobufCBinaryData nothing;

	for (size_t i = 0; i < held->n_rendezvous; i++)
		if (!strcmp(held->rendezvous[i]->provider, provider->name))
			return &held->rendezvous[i]->data;
	return &nothing;
}

int external_held(struct migrate_source *source, const Pbeam__MigrateHeld *held, struct err *err)
{
	int r = 0;

	for (size_t i = 0; external_table[i] && r >= 0; i++)
		if (external_table[i]->held)
			r = external_table[i]->held(source, &source->state[i],
						    rendezvous_of(held, external_table[i]), err);
	return r < 0 ? r : 0;
}

int external_check(struct migrate_source *source, struct err *err)
{
	int r = 0;

	for (size_t i = 0; external_table[i] && r >= 0; i++)
		if (external_table[i]->check)
			r = external_table[i]->check(source, &source->state[i], err);
	return r < 0 ? r : 0;
}

void external_source_end(struct migrate_source *source, bool committed)
{
	for (size_t i = 0; external_table[i]; i++) {
		const struct external_provider *p = external_table[i];

		if (committed && p->source_committed)
			p->source_committed(source, &source->state[i]);
		if (!committed && p->source_aborted)
			p->source_aborted(source, &source->state[i]);
		if (p->source_close)
			p->source_close(source, &source->state[i]);
		source->state[i] = NULL;
	}
}

/* ---- target ---- */

int external_expect(struct migrate_target *target, struct err *err)
{
	int r = 0;

	for (size_t i = 0; external_table[i] && r >= 0; i++)
		if (external_table[i]->expect)
			r = external_table[i]->expect(target, &target->state[i], err);
	return r < 0 ? r : 0;
}

static int find_provider(const Pbeam__Object *object, size_t *index, struct err *err)
{
	for (size_t i = 0; external_table[i]; i++)
		if (!strcmp(external_table[i]->name, object->external->provider)) {
			*index = i;
			return 0;
		}
	return err_set(err, -ENOTSUP, "object %u needs \"%s\", which this version does not have", object->id,
		       object->external->provider);
}

static int target_make(void *arg, struct object_restore *restore, const Pbeam__Object *object, int *fd,
		       struct err *err)
{
	struct migrate_target *target = arg;
	size_t i;
	int r = find_provider(object, &i, err);

	if (r == 0 && !external_table[i]->make)
		r = err_set(err, -ENOTSUP, "object %u cannot be made again", object->id);
	return r < 0 ? r : external_table[i]->make(target, &target->state[i], restore, object, fd, err);
}

static int target_finish(void *arg, struct object_restore *restore, const Pbeam__Object *object, int fd,
			 struct err *err)
{
	struct migrate_target *target = arg;
	size_t i;
	int r = find_provider(object, &i, err);

	if (r < 0 || !external_table[i]->finish)
		return r;
	return external_table[i]->finish(target, &target->state[i], restore, object, fd, err);
}

struct object_external external_of_target(struct migrate_target *target)
{
	return (struct object_external){.arg = target, .make = target_make, .finish = target_finish};
}

static int ready_one(struct migrate_target *target, size_t i, Pbeam__MigrateHeld *held, struct err *err)
{
	Pbeam__Rendezvous *out;
	ProtobufCBinaryData data = {0};
	int r = external_table[i]->ready(target, &target->state[i], &data, err);

	if (r < 0 || !data.len) {
		free(data.data);
		return r;
	}
	out = message_add(held, rendezvous, pbeam__rendezvous__descriptor);
	if (!out || message_string(&out->provider, external_table[i]->name) < 0) {
		free(data.data);
		return err_code(err, -ENOMEM, "rendezvous");
	}
	out->data = data;
	return 0;
}

int external_ready(struct migrate_target *target, Pbeam__MigrateHeld *held, struct err *err)
{
	int r = 0;

	for (size_t i = 0; external_table[i] && r >= 0; i++)
		if (external_table[i]->ready)
			r = ready_one(target, i, held, err);
	return r < 0 ? r : 0;
}

void external_target_end(struct migrate_target *target, bool committed)
{
	for (size_t i = 0; external_table[i]; i++) {
		const struct external_provider *p = external_table[i];

		if (committed && p->target_committed)
			p->target_committed(target, &target->state[i]);
		if (!committed && p->target_aborted)
			p->target_aborted(target, &target->state[i]);
		if (p->target_close)
			p->target_close(target, &target->state[i]);
		target->state[i] = NULL;
	}
}
