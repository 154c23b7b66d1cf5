/* Moves all processes of a host to another one. */
#ifndef PBEAMCTL_MIGRATE_ALL_H
#define PBEAMCTL_MIGRATE_ALL_H

#include "proto/daemon.pb-c.h"

/* Prints one line about a completed migration. */
void migrate_print(const Pbeam__MigrateReply *done);
/* Moves every process on host `from`, one tree at a time, with the options in `request`, whose target is
 * filled in. Prints the processes that could not move, with the reason, and those elsewhere that still depend
 * on the host. Returns the exit status: STATUS_DONE if the host can be shut down. */
int migrate_all(Pbeam__MigrateRequest *request, const char *from);

#endif
