/* Parses values from command lines: times, sizes, signals. */
#ifndef BASE_PARSE_H
#define BASE_PARSE_H

#include <stdint.h>

#include "base/err.h"

/* "90", "90s", "1.5m", "2h", "300ms" as nanoseconds; without a unit seconds. More than 0, at most a year. */
must_check int parse_duration(const char *text, uint64_t *ns, struct err *err);

/* "4096", "64K", "64M", "64MiB", "1.5G", "2T" as bytes, powers of 1024. */
must_check int parse_size(const char *text, uint64_t *bytes, struct err *err);

/* "TERM", "SIGTERM", "term", "15", "RTMIN+3", "RTMAX-1". 0 is allowed, as kill(1) does. Returns the number or
 * -EINVAL. */
must_check int parse_signal(const char *text, struct err *err);

/* A whole number from `least` to `most`. */
must_check int parse_number(const char *text, uint64_t least, uint64_t most, uint64_t *out, struct err *err);

#endif
