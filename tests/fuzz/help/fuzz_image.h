/* Images with right digests. */
#ifndef TESTS_FUZZ_FUZZ_IMAGE_H
#define TESTS_FUZZ_FUZZ_IMAGE_H

#include <stddef.h>
#include <stdint.h>

/* Makes an image in memory: `pages` pages of data and this packed manifest, which may be any bytes. Returns
 * its descriptor, the caller's, or -1. */
int fuzz_image(const uint8_t *manifest, size_t len, size_t pages);

#endif
