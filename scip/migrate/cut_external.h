/*
 * TCP connections between the parts of a cut as a provider of scip/migrate/external.h: in the image each end
 * has the connection's number, and when the parts are restored the two ends with the same number are
 * connected anew, wherever they are then. scip/cut/cut.h tells the story.
 */
#ifndef SCIP_MIGRATE_CUT_EXTERNAL_H
#define SCIP_MIGRATE_CUT_EXTERNAL_H

#include "scip/migrate/external.h"

struct swap_end;
extern const struct external_provider cut_provider;

/* out->external: an end of connection number `id`. Returns 1 or -errno. */
must_check int cut_mark(Pbeam__Object *out, uint64_t id, const struct swap_end *end, struct err *err);

/* On the side where a part is restored: sockets for the other ends that call; `ready` tells their ports. */
must_check int cut_listen(struct migrate_target *target, Pbeam__MigrateReady *ready, struct err *err);
void cut_unlisten(struct migrate_target *target);

#endif
