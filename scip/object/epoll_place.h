/*
 * Calls on an epoll instance with a chosen descriptor number.
 *
 * The kernel keeps an entry under (open file description, descriptor number), so the number of the program
 * must refer to the description during epoll_ctl(). These functions run in a descriptor table that no other
 * thread uses: a child's, or one of unshare(CLONE_FILES). A number refers to the description for one call and
 * then to what it was before, so that a set costs one descriptor, however many entries it has.
 */
#ifndef SCIP_OBJECT_EPOLL_PLACE_H
#define SCIP_OBJECT_EPOLL_PLACE_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

struct epoll_place {
	int epoll;
	int spare; /* a descriptor that may be replaced */
};

/* Runs `act` while `number` refers to the description of `target`. The result of `act`, or -errno. */
must_check int epoll_place_run(const struct epoll_place *place, int target, int number,
			       int (*act)(int epoll, int number, void *arg), void *arg);

/* A description that may be registered under `number`. */
struct epoll_guess {
	int target, number;
	bool right; /* out: it is registered */
};
/* Checks the guesses with a call each, in a thread with a table of its own. kcmp(KCMP_EPOLL_TFD), which tells
 * the same, walks through all entries of the set (get_epoll_tfile_raw_ptr(), Linux 6.18). Where this does not
 * work nothing is right. */
void epoll_place_check(int epoll, struct epoll_guess *guesses, size_t n);

#endif
