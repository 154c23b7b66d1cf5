/*
 * The functions of a vdso, from its ELF section headers. Pure. The bytes may be those of an image: everything
 * is checked.
 */
#ifndef SCIP_REBUILD_VDSO_SYMBOLS_H
#define SCIP_REBUILD_VDSO_SYMBOLS_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

/* x86-64 kernels export some 7 functions, each under two names. */
enum { VDSO_SYMBOLS_MAX = 128 };

struct vdso_symbol {
	const char *name; /* in the vdso */
	uint64_t offset;  /* of the function, from the beginning of the vdso */
};

/* Lists the functions. Returns their number, which is not 0, or -EINVAL if this is no vdso of x86-64 or has
 * no functions. */
must_check int vdso_symbols_read(const uint8_t *vdso, size_t len, struct vdso_symbol out[VDSO_SYMBOLS_MAX]);

#endif
