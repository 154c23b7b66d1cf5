/*
 * One list of the checkpoints that several hosts have of one target. An image on several hosts, like the
 * manifest of a cut, is one entry. Replies of other hosts are untrusted and are checked.
 */
#ifndef PBEAMD_CHECKPOINTS_H
#define PBEAMD_CHECKPOINTS_H

#include "base/err.h"
#include "proto/daemon.pb-c.h"

/* Adds a host's reply to DAEMON_LOG (type DAEMON_NONE: there was none) about all->store to `all`: its
 * entries, or a sentence about the host in `notes`. A host without checkpoints of it adds nothing. -ENOMEM.
 */
must_check int checkpoints_take(Pbeam__CheckpointLog *all, const char *host, uint32_t type, const void *body,
				size_t len);
/* After all replies: sorts by number, unites the copies of one image, that on all->here first, and names the
 * entries. -ENOMEM. */
must_check int checkpoints_order(Pbeam__CheckpointLog *all);
/* Sets the argument for `rollback --to` of each entry: NUMBER, or NUMBER@HOST. Of several with one number,
 * NUMBER is the one of the live run, else the one on the host of the live run, else the newest. -ENOMEM. */
must_check int checkpoints_name(Pbeam__CheckpointLog *all);

#endif
