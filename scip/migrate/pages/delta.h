/*
 * The difference between two contents of a page: what is sent of one that was sent before and written to in a
 * few places. Words of 8 bytes; a list of (words skipped, words changed: 16 bits each, little endian; the
 * changed words). Pure.
 */
#ifndef SCIP_MIGRATE_DELTA_H
#define SCIP_MIGRATE_DELTA_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

enum { DELTA_PAGE = 4096, DELTA_WORDS = DELTA_PAGE / 8, DELTA_MAX = DELTA_PAGE / 4 * 3 };

/* Into `to`, of DELTA_MAX bytes. How long it is, 0 when the pages are the same, -ENOSPC when it is not worth
 * it. */
must_check int delta_make(const void *before, const void *after, uint8_t *to);
/* Makes of what was before what is after. -EPROTO for what cannot be a difference. */
must_check int delta_apply(void *page, const uint8_t *delta, size_t len);

#endif
