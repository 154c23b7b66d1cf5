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
/* When all have answered: by their numbers, the copies of one image together, that on all->here first, and
 * named. -ENOMEM. */
must_check int checkpoints_order(Pbeam__CheckpointLog *all);
/* What `rollback --to` takes for each: its number, or NUMBER@HOST where that is another's: of several with
 * one number it is that of the run that is live, else the one on the host where that is, else the newest.
 * -ENOMEM. */
must_check int checkpoints_name(Pbeam__CheckpointLog *all);

#endif
