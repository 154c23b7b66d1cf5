/* What a keeper and the processes that hold its links send each other: one LinkNews (proto/keeper.proto) in
 * each datagram of a seqpacket pair. */
#ifndef SCIP_JOB_LINK_NEWS_H
#define SCIP_JOB_LINK_NEWS_H

#include <stdint.h>

#include "base/err.h"
#include "proto/keeper.pb-c.h"

struct link_news {
	enum _Pbeam__LinkNews__Type type;
	int32_t vpid, value, from;
	int32_t stub; /* its real pid; 0: not known */
};

/* Sends with send(2)'s `flags` (never SIGPIPE). 0 or -errno. */
must_check int link_news_send(int sock, const struct link_news *news, int flags);
/* Receives with recv(2)'s `flags`. 1, 0 at end of file, or -errno: -EPROTO for a malformed datagram. */
must_check int link_news_receive(int sock, struct link_news *news, int flags);

#endif
