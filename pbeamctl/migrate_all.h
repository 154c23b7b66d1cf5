/* Everything that is on a host moves to another one. */
#ifndef PBEAMCTL_MIGRATE_ALL_H
#define PBEAMCTL_MIGRATE_ALL_H

#include "proto/daemon.pb-c.h"

/* One line about a migration that is done. */
void migrate_tell(const Pbeam__MigrateReply *done);
/* Moves every process that is on host `from` as `request`, whose target is filled in, says; a tree at a time.
 * Prints what could not leave, with the reason, and who is elsewhere and depends on the host still. The exit
 * status: STATUS_DONE when the host can be switched off. */
int migrate_all(Pbeam__MigrateRequest *request, const char *from);

#endif
