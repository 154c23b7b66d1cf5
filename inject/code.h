/* The injected code as bytes, for scip/tracee: entered at its first byte. */
#ifndef INJECT_CODE_H
#define INJECT_CODE_H

#include <stdint.h>

extern const uint8_t inject_code_start[], inject_code_end[];

#endif
