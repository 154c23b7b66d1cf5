/* Names of functions from ELF files. The files may be anything: every offset is checked. */
#ifndef SCIP_TRACEE_SYMBOLS_H
#define SCIP_TRACEE_SYMBOLS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

struct symbols; /* one file's tables, mapped */

/* NULL when the file cannot be read or is no ELF file of this machine. */
struct symbols *symbols_open(const char *path);
void symbols_close(struct symbols *symbols);
/* The function that holds the byte at `offset` of the file. The name lives as long as `symbols`. */
bool symbols_find(const struct symbols *symbols, uint64_t offset, const char **name, uint64_t *into);

#endif
