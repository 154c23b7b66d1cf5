/* The interest lists of epoll instances: as fdinfo shows them, and how entries are added. */
#ifndef SCIP_OBJECT_EPOLL_H
#define SCIP_OBJECT_EPOLL_H

#include "scip/object/object.h"

struct epoll_line {
	int fd;
	uint32_t events;
	uint64_t data, ino;
};
/* The next entry in fdinfo's text from *at on. 1, 0 when there is none, -EPROTO. */
must_check int epoll_next_line(const char **at, struct epoll_line *out, struct err *err);

/* Adds each entry, under its number, for our descriptor targets[i]; before that, where `olds` is not NULL,
 * removes the entry for olds[i] under that number. A child of ours does this, so that our own numbers do not
 * matter. */
must_check int epoll_replace(int epoll, const Pbeam__Epoll *entries, const int *olds, const int *targets,
			     struct err *err);

/* The number of entries that process `vpid` has to add itself, once the object was checked. */
size_t epoll_own_entries(const Pbeam__Object *object, int32_t vpid);

#endif
