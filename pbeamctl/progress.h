/* A bar on standard error, if that is a terminal. */
#ifndef PBEAMCTL_PROGRESS_H
#define PBEAMCTL_PROGRESS_H

#include "proto/daemon.pb-c.h"

/* Its note, if it has one, is a line of its own, terminal or not. */
void progress_show(const Pbeam__Progress *progress);
/* Removes it. No effect when there is none. */
void progress_end(void);

#endif
