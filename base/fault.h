/*
 * Named places where a test may make a program fail. PBEAM_FAULT=POINT:ACTION[:N] acts at the N-th passing of
 * POINT (the first without N): "fail" (the caller gets -EIO), "kill" (SIGKILL to itself), "sleep" (waits ten
 * seconds, so that a test can act). If PBEAM_FAULT names a file with this text, "sleep" writes
 * "POINT:reached" to the file and continues as soon as the file is changed. Compiled in only with the CMake
 * option PBEAM_FAULTS; else it costs nothing.
 */
#ifndef BASE_FAULT_H
#define BASE_FAULT_H

#include <stdbool.h>

#include "base/err.h"

#ifdef PBEAM_FAULTS
/* Returns 0, or -EIO with a message in `err`. */
must_check int fault_point(const char *point, struct err *err);
/* True at the passing that is to fail, for a failure that the caller makes itself. If PBEAM_FAULT names a
 * file, "POINT:reached DETAIL" is written to it. */
bool fault_reached(const char *point, const char *detail);
#else
must_check static inline int fault_point(const char *point, struct err *err)
{
	(void)point;
	(void)err;
	return 0;
}
#endif

#endif
