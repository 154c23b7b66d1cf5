/*
 * The difference between two contents of a page, for a page that was sent before and has been written to in a
 * few places: a list of (words skipped, words changed: 16 bits each, little endian; the changed words), with
 * words of 8 bytes. Pure functions.
 */
#ifndef SCIP_PRECOPY_DELTA_H
#define SCIP_PRECOPY_DELTA_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

enum { DELTA_PAGE = 4096, DELTA_WORDS = DELTA_PAGE / 8, DELTA_MAX = DELTA_PAGE / 4 * 3 };

/* Writes the difference to `to`, which has DELTA_MAX bytes. Returns its length, 0 when the pages are the
 * same, -ENOSPC when the whole page is better. */
must_check int delta_make(const void *before, const void *after, uint8_t *to);
/* Applies a difference to the page. 0, or -EPROTO for a malformed one. */
must_check int delta_apply(void *page, const uint8_t *delta, size_t len);

#endif
