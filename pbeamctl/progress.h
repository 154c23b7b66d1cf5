/* A bar on standard error, if that is a terminal. */
#ifndef PBEAMCTL_PROGRESS_H
#define PBEAMCTL_PROGRESS_H

#include <stdint.h>

void progress_show(const char *phase, uint64_t done, uint64_t total);
/* Removes it. No effect when there is none. */
void progress_end(void);

#endif
