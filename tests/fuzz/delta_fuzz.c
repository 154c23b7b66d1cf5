/*
 * libFuzzer: the difference between two contents of a page. The input is first a difference from a peer, then
 * the changes from which a difference is made that must lead from one page to the other.
 */
#include <stdlib.h>
#include <string.h>

#include "scip/precopy/delta.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	uint8_t before[DELTA_PAGE], after[DELTA_PAGE], delta[DELTA_MAX];
	uint8_t *exact = calloc(1, size ? size : 1); /* so that a read beyond its end is seen */
	int len;

	if (!exact)
		return 0;
	if (size)
		memcpy(exact, data, size);
	memset(before, 0x5a, sizeof(before));
	(void)!delta_apply(before, exact, size);
	memcpy(after, before, sizeof(after));
	for (size_t i = 0; i + 3 <= size; i += 3)
		after[(data[i] | data[i + 1] << 8) % DELTA_PAGE] ^= data[i + 2];
	len = delta_make(before, after, delta);
	if (len >= 0 &&
	    (delta_apply(before, delta, (size_t)len) < 0 || memcmp(before, after, sizeof(after)) != 0))
		abort();
	free(exact);
	return 0;
}
