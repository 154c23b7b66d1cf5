#include "scip/precopy/delta.h"

#include <errno.h>
#include <string.h>

enum { HEAD = 4, GAP_WORDS = 1 /* equal words that are cheaper to send than to skip */ };

static void put_head(uint8_t *to, size_t skipped, size_t changed)
{
	to[0] = (uint8_t)skipped;
	to[1] = (uint8_t)(skipped >> 8);
	to[2] = (uint8_t)changed;
	to[3] = (uint8_t)(changed >> 8);
}

static uint64_t word_of_page(const void *page, size_t i)
{
	uint64_t out;

	memcpy(&out, (const uint8_t *)page + i * 8, sizeof(out));
	return out;
}

/* Finds the first word from `i` on that differs. */
static size_t skip_equal(const void *before, const void *after, size_t i)
{
	enum { STEP = 8 };

	while (i + STEP <= DELTA_WORDS &&
	       !memcmp((const uint8_t *)before + i * 8, (const uint8_t *)after + i * 8, STEP * 8))
		i += STEP;
	while (i < DELTA_WORDS && word_of_page(before, i) == word_of_page(after, i))
		i++;
	return i;
}

/* Finds the end of the words that differ from `i` on, small gaps included. */
static size_t skip_changed(const void *before, const void *after, size_t i)
{
	size_t end = i;

	for (; i < DELTA_WORDS && i - end <= GAP_WORDS; i++)
		if (word_of_page(before, i) != word_of_page(after, i))
			end = i + 1;
	return end;
}

int delta_make(const void *before, const void *after, uint8_t *to)
{
	size_t at = 0, len = 0;

	for (;;) {
		size_t from = skip_equal(before, after, at), end;

		if (from == DELTA_WORDS)
			return (int)len;
		end = skip_changed(before, after, from);
		if (len + HEAD + (end - from) * 8 > DELTA_MAX)
			return -ENOSPC;
		put_head(to + len, from - at, end - from);
		memcpy(to + len + HEAD, (const uint8_t *)after + from * 8, (end - from) * 8);
		len += HEAD + (end - from) * 8;
		at = end;
	}
}

int delta_apply(void *page, const uint8_t *delta, size_t len)
{
	size_t at = 0;

	while (len) {
		size_t skipped, changed;

		if (len < HEAD)
			return -EPROTO;
		skipped = delta[0] | (size_t)delta[1] << 8;
		changed = delta[2] | (size_t)delta[3] << 8;
		if (!changed || skipped + changed > DELTA_WORDS - at || len - HEAD < changed * 8)
			return -EPROTO;
		at += skipped;
		memcpy((uint8_t *)page + at * 8, delta + HEAD, changed * 8);
		at += changed;
		delta += HEAD + changed * 8;
		len -= HEAD + changed * 8;
	}
	return 0;
}
