/*
 * Which new connections of other hosts are taken, by where they come from.
 *
 * A connection is a stranger's until a greeting over it has proved the cluster's key. Strangers are limited
 * as OpenSSH's MaxStartups limits unauthenticated connections (sshd_config(5)): from `start` pending ones on,
 * each new one is dropped at random, with a probability that grows from `rate` percent to certainty at
 * `full`. So an attacker needs ever more connections to keep others out, and a host that tries again gets in.
 * One source has at most an eighth of `full`, one network half of it. A source is an IPv4 address or an IPv6
 * /64, a network an IPv4 /24 or an IPv6 /48: whoever has one address of these mostly has all of them.
 *
 * Connections from the addresses of hosts of the cluster count apart, for each source, and are not dropped
 * because of strangers.
 */
#ifndef PBEAMD_TRANSPORT_ADMISSION_H
#define PBEAMD_TRANSPORT_ADMISSION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

enum {
	ADMISSION_START = 32,
	ADMISSION_RATE = 30,
	ADMISSION_FULL = 128,
	ADMISSION_FULL_MAX = 1024,
	ADMISSION_KNOWN_MAX = 256,   /* sources of hosts that are remembered */
	ADMISSION_OF_KNOWN_MAX = 64, /* pending connections of one of them */
};

struct admission_limits {
	unsigned start, rate, full;
};

enum origin_family {
	ORIGIN_UNKNOWN,
	ORIGIN_UNIX, /* only this user's programs can connect */
	ORIGIN_INET4,
	ORIGIN_INET6,
};

struct origin {
	enum origin_family family;
	uint8_t address[16];
};

/* Pending connections of strangers: all, those of one network, and those of one source. */
struct admission_count {
	unsigned all, network, source;
};

/* The sources from which greetings with the cluster's key came; the oldest is forgotten first. */
struct admission_known {
	struct origin origins[ADMISSION_KNOWN_MAX];
	unsigned used, next;
};

enum admission {
	ADMISSION_TAKEN,
	ADMISSION_SOURCE_FULL,
	ADMISSION_NETWORK_FULL,
	ADMISSION_DROPPED,
};

/* Parses "START:RATE:FULL". -EINVAL with the sentence. */
must_check int admission_parse(struct admission_limits *out, const char *text, struct err *err);
/* The other end of a connection. */
struct origin origin_of_socket(int sock);
/* Parses a numeric address, "10.0.0.1:7113" or "[fd00::1]:7113"; ORIGIN_UNKNOWN for a name. */
struct origin origin_of_text(const char *address);
bool origin_is_same_source(const struct origin *a, const struct origin *b);
bool origin_is_same_network(const struct origin *a, const struct origin *b);

/* The decision about one more connection of a stranger. `chance` is a random number below 100. */
enum admission admission_decide(const struct admission_limits *limits, const struct admission_count *pending,
				unsigned chance);

void admission_remember(struct admission_known *known, const struct origin *origin);
bool admission_knows(const struct admission_known *known, const struct origin *origin);

#endif
