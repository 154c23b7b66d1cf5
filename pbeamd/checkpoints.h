/*
 * The checkpoints that several hosts have of the same thing, as one list. An image that is on several hosts,
 * as the manifest of a cut is, is one entry. What a host answers is checked: it may be anything.
 */
#ifndef PBEAMD_CHECKPOINTS_H
#define PBEAMD_CHECKPOINTS_H

#include "base/err.h"
#include "proto/daemon.pb-c.h"

/* What `host` has answered to a DAEMON_LOG (type DAEMON_NONE: nothing) goes into `all`, whose `store` says
 * of what: its entries, or a sentence about the host in `notes`. A host that has never heard of it has
 * nothing. -ENOMEM. */
must_check int checkpoints_take(Pbeam__CheckpointLog *all, const char *host, uint32_t type, const void *body,
				size_t len);
/* By their numbers, of each entry the copy on all->here first. */
void checkpoints_order(Pbeam__CheckpointLog *all);

#endif
