#include "pbeamd/transport/admission.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "base/parse.h"

enum { SHARE_OF_SOURCE = 8, SHARE_OF_NETWORK = 2 };
/* Bytes of an address. */
enum { SOURCE4 = 4, NETWORK4 = 3, SOURCE6 = 8, NETWORK6 = 6 };

int admission_parse(struct admission_limits *out, const char *text, struct err *err)
{
	char copy[64], *rest = copy;
	uint64_t numbers[3];
	static const uint64_t most[] = {ADMISSION_FULL_MAX, 100, ADMISSION_FULL_MAX};

	if (snprintf(copy, sizeof(copy), "%s", text) >= (int)sizeof(copy))
		return err_set(err, -EINVAL, "max-startups: `%s` is too long", text);
	for (int i = 0; i < 3; i++) {
		const char *word = strsep(&rest, ":");

		if (!word || parse_number(word, 1, most[i], &numbers[i], NULL) < 0)
			return err_set(err, -EINVAL,
				       "max-startups: `%s` is not START:RATE:FULL, with RATE from 1 to 100 "
				       "and the others from 1 to %d",
				       text, ADMISSION_FULL_MAX);
	}
	if (rest || numbers[0] > numbers[2])
		return err_set(err, -EINVAL,
			       "max-startups: `%s` is not START:RATE:FULL with START no larger than FULL",
			       text);
	*out = (struct admission_limits){(unsigned)numbers[0], (unsigned)numbers[1], (unsigned)numbers[2]};
	return 0;
}

/* ---- origins ---- */

static struct origin origin_of_inet6(const struct in6_addr *address)
{
	struct origin origin = {.family = ORIGIN_INET6};

	if (IN6_IS_ADDR_V4MAPPED(address)) {
		origin.family = ORIGIN_INET4;
		memcpy(origin.address, address->s6_addr + 12, 4);
	} else {
		memcpy(origin.address, address->s6_addr, sizeof(origin.address));
	}
	return origin;
}

struct origin origin_of_socket(int sock)
{
	union {
		struct sockaddr any;
		struct sockaddr_in v4;
		struct sockaddr_in6 v6;
		struct sockaddr_storage room;
	} peer;
	struct origin origin = {.family = ORIGIN_UNKNOWN};
	socklen_t len = sizeof(peer);

	if (getpeername(sock, &peer.any, &len) < 0)
		return origin;
	if (peer.any.sa_family == AF_UNIX)
		origin.family = ORIGIN_UNIX;
	if (peer.any.sa_family == AF_INET6)
		return origin_of_inet6(&peer.v6.sin6_addr);
	if (peer.any.sa_family == AF_INET) {
		origin.family = ORIGIN_INET4;
		memcpy(origin.address, &peer.v4.sin_addr, 4);
	}
	return origin;
}

struct origin origin_of_text(const char *address)
{
	struct origin origin = {.family = ORIGIN_UNKNOWN};
	char host[INET6_ADDRSTRLEN];
	const bool bracket = address[0] == '[';
	const char *start = address + bracket, *end = strchr(start, bracket ? ']' : ':');
	size_t len = end ? (size_t)(end - start) : strlen(start);
	struct in6_addr v6;

	if (!bracket && end && strchr(end + 1, ':')) /* IPv6 without a port */
		len = strlen(start);
	if (len >= sizeof(host))
		return origin;
	memcpy(host, start, len);
	host[len] = 0;
	if (inet_pton(AF_INET6, host, &v6) == 1)
		return origin_of_inet6(&v6);
	if (inet_pton(AF_INET, host, origin.address) == 1)
		origin.family = ORIGIN_INET4;
	return origin;
}

static bool is_same_prefix(const struct origin *a, const struct origin *b, size_t bytes4, size_t bytes6)
{
	return a->family == b->family &&
	       !memcmp(a->address, b->address, a->family == ORIGIN_INET4 ? bytes4 : bytes6);
}

bool origin_is_same_source(const struct origin *a, const struct origin *b)
{
	return is_same_prefix(a, b, SOURCE4, SOURCE6);
}

bool origin_is_same_network(const struct origin *a, const struct origin *b)
{
	return is_same_prefix(a, b, NETWORK4, NETWORK6);
}

/* ---- the decision ---- */

static bool is_share_used(unsigned pending, unsigned full, unsigned share)
{
	return pending >= (full > share ? full / share : 1);
}

/* The probability in percent. It grows linearly, as OpenSSH's does. */
static unsigned drop_rate(const struct admission_limits *limits, unsigned pending)
{
	if (pending < limits->start)
		return 0;
	if (pending >= limits->full || limits->rate >= 100)
		return 100;
	return limits->rate +
	       (100 - limits->rate) * (pending - limits->start) / (limits->full - limits->start);
}

enum admission admission_decide(const struct admission_limits *limits, const struct admission_count *pending,
				unsigned chance)
{
	if (is_share_used(pending->source, limits->full, SHARE_OF_SOURCE))
		return ADMISSION_SOURCE_FULL;
	if (is_share_used(pending->network, limits->full, SHARE_OF_NETWORK))
		return ADMISSION_NETWORK_FULL;
	return chance < drop_rate(limits, pending->all) ? ADMISSION_DROPPED : ADMISSION_TAKEN;
}

/* ---- the sources of hosts ---- */

bool admission_knows(const struct admission_known *known, const struct origin *origin)
{
	if (origin->family == ORIGIN_UNIX)
		return true;
	if (origin->family == ORIGIN_UNKNOWN)
		return false;
	for (unsigned i = 0; i < known->used; i++)
		if (origin_is_same_source(&known->origins[i], origin))
			return true;
	return false;
}

void admission_remember(struct admission_known *known, const struct origin *origin)
{
	if (origin->family == ORIGIN_UNKNOWN || admission_knows(known, origin))
		return;
	known->origins[known->next] = *origin;
	known->next = (known->next + 1) % ADMISSION_KNOWN_MAX;
	if (known->used < ADMISSION_KNOWN_MAX)
		known->used++;
}
