#include "scip/migrate/external.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "proto/message.h"
#include "scip/files/files.h"
#include "scip/migrate/address.h"
#include "scip/migrate/bridge/external.h"
#include "scip/migrate/cut_external.h"
#include "scip/migrate/swap/external.h"

const struct external_provider *const external_table[] = {
	&swap_provider,			   /* what can be made anew ... */
	&bridge_provider,		   /* ... what cannot ... */
	&left_provider,			   /* ... and what is closed */
	&address_provider,  &cut_provider, /* of a rollback of several parts */
	&cut_line_provider, &pidfd_provider, NULL,
};

_Static_assert(sizeof(external_table) / sizeof(external_table[0]) <= EXTERNAL_PROVIDERS_MAX + 1,
	       "every provider has a state");

int external_mark(Pbeam__Object *out, const struct external_provider *provider, const void *data, size_t len)
{
	out->external = message_new(&pbeam__external__descriptor);
	if (!out->external || message_string(&out->external->provider, provider->name) < 0)
		return -ENOMEM;
	return message_bytes(&out->external->data, data, len);
}

void migrate_obstacle(struct migrate_source *source, const char *fmt, ...)
{
	char **more = reallocarray(source->obstacles, source->nobstacles + 1, sizeof(*more));
	va_list ap;

	if (!more)
		return;
	source->obstacles = more;
	va_start(ap, fmt);
	if (vasprintf(&more[source->nobstacles], fmt, ap) >= 0)
		source->nobstacles++;
	va_end(ap);
}

void migrate_note(const struct migrate_source *source, const char *fmt, ...)
{
	char text[200];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	log_info("migrate: %s", text);
	if (source->note)
		source->note(source->note_arg, text);
}

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

int external_held(struct migrate_source *source, const Pbeam__MigrateHeld *held, struct err *err)
{
	static const ProtobufCBinaryData nothing;
	int r = 0;

	for (size_t i = 0; external_table[i] && r >= 0; i++)
		if (external_table[i]->held)
			r = external_table[i]->held(source, &source->state[i],
						    i < held->n_rendezvous ? &held->rendezvous[i] : &nothing,
						    err);
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
	return err_set(err, -ENOTSUP, "object %u needs \"%s\", which is not there in this version",
		       object->id, object->external->provider);
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

int external_ready(struct migrate_target *target, Pbeam__MigrateHeld *held, struct err *err)
{
	size_t n = 0;
	int r = 0;

	while (external_table[n])
		n++;
	held->rendezvous = calloc(n + 1, sizeof(*held->rendezvous));
	if (!held->rendezvous)
		return err_code(err, -ENOMEM, "rendezvous");
	held->n_rendezvous = n;
	for (size_t i = 0; i < n && r >= 0; i++)
		if (external_table[i]->ready)
			r = external_table[i]->ready(target, &target->state[i], &held->rendezvous[i], err);
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
