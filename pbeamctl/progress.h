/* A progress bar on standard error, if that is a terminal. */
#ifndef PBEAMCTL_PROGRESS_H
#define PBEAMCTL_PROGRESS_H

#include "proto/daemon.pb-c.h"

/* Draws the bar. A note is printed on a line of its own, also without a terminal. */
void progress_show(const Pbeam__Progress *progress);
/* Removes the bar, if there is one. */
void progress_end(void);

#endif
