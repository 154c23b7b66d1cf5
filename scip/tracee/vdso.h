/* The kernel's code in every process: programs keep addresses into it, so an image can only be restored where
 * it is the same, byte for byte. */
#ifndef SCIP_TRACEE_VDSO_H
#define SCIP_TRACEE_VDSO_H

#include <stddef.h>

/* The vdso of this process, the same as in every process; NULL if the kernel provides none. */
const void *vdso_bytes(size_t *len);

#endif
