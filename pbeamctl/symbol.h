/* Names of functions, from a program's or library's own symbol tables. */
#ifndef PBEAMCTL_SYMBOL_H
#define PBEAMCTL_SYMBOL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The function at a file offset as "name+0x12"; false when the file tells none. The file is not trusted. */
bool symbol_find(const char *path, uint64_t offset, char *out, size_t size);

#endif
