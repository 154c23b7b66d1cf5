/* All providers of ends outside the tree (scip/ends/external.h), called in turn by a migration's
 * coordinators. */
#ifndef SCIP_ARRIVAL_PROVIDERS_H
#define SCIP_ARRIVAL_PROVIDERS_H

#include "scip/ends/external.h"

must_check int external_prepare(struct migrate_source *source, struct err *err);
/* Returns the handler that object_dump_all() calls. */
struct object_external external_of_source(struct migrate_source *source);
must_check int external_held(struct migrate_source *source, const Pbeam__MigrateHeld *held, struct err *err);
must_check int external_check(struct migrate_source *source, struct err *err);
/* Calls every provider's handler of the outcome, and closes the providers. */
void external_source_end(struct migrate_source *source, bool committed);

must_check int external_expect(struct migrate_target *target, struct err *err);
/* Returns the handler that the restore of objects calls. */
struct object_external external_of_target(struct migrate_target *target);
/* Fills held->rendezvous. */
must_check int external_ready(struct migrate_target *target, Pbeam__MigrateHeld *held, struct err *err);
void external_target_end(struct migrate_target *target, bool committed);

#endif
