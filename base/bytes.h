/*
 * memcpy(), memcmp() and qsort() for ranges that may be empty. The C library requires valid pointers even for
 * a length of 0, and an empty field of a message or an empty list has a null pointer: undefined behaviour,
 * from which compilers conclude that the pointer is never null. tests/check_source.py finds direct calls.
 */
#ifndef BASE_BYTES_H
#define BASE_BYTES_H

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* Copies `len` bytes between ranges that do not overlap. Either pointer may be null if `len` is 0. */
static inline void bytes_copy(void *to, const void *from, size_t len)
{
	if (len)
		memcpy(to, from, len);
}

/* True if the two ranges of `len` bytes are equal. Either pointer may be null if `len` is 0. */
static inline bool bytes_equal(const void *a, const void *b, size_t len)
{
	return len == 0 || memcmp(a, b, len) == 0;
}

/* Sorts `n` elements of `size` bytes. `v` may be null if `n` is 0. */
static inline void bytes_sort(void *v, size_t n, size_t size, int (*compare)(const void *, const void *))
{
	if (n)
		qsort(v, n, size, compare);
}

#endif
