/* Digests of a file: of a range, and of its chunks, on several threads. */
#ifndef IMAGE_DIGEST_H
#define IMAGE_DIGEST_H

#include <stdint.h>

#include "base/err.h"
#include "image/arena.h"

/* XXH3-128 of `length` bytes of the file from `offset`, in canonical (big-endian) byte order. Returns 0 or
 * -errno; -EIO when the file is shorter. */
must_check int digest_range(int fd, uint64_t offset, uint64_t length, uint8_t out[IMAGE_DIGEST]);

/* Computes one digest for each IMAGE_CHUNK of [0, end), the last one shorter, into `digests`. `done` (may
 * be NULL) marks chunks that have theirs already. Uses as many threads as processors are allowed. */
must_check int digest_chunks(int fd, uint64_t end, uint8_t (*digests)[IMAGE_DIGEST], const uint8_t *done);

/* Checks the same digests except those of chunks that `skip` (may be NULL) marks. Returns the number of
 * the first bad chunk, -1 if all are good, or -errno - 1. */
int64_t digest_check(int fd, uint64_t end, const uint8_t (*digests)[IMAGE_DIGEST], const uint8_t *skip);

/* Calls one(arg, i) for each i below `n`, on as many threads as processors are allowed, until a call returns
 * -errno. Returns that, or 0. */
must_check int digest_each(uint64_t n, int (*one)(void *arg, uint64_t i), void *arg);

#endif
