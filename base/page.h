/* The size of a page, which is fixed on x86-64. */
#ifndef BASE_PAGE_H
#define BASE_PAGE_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

enum { PAGE = 4096 };

static inline uint64_t page_round_up(uint64_t bytes)
{
	return (bytes + PAGE - 1) & ~(uint64_t)(PAGE - 1);
}

static inline bool page_is_zero(const uint8_t page[PAGE])
{
	return !page[0] && !memcmp(page, page + 1, PAGE - 1);
}

#endif
