#include "scip/object/epoll_place.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <sys/epoll.h>
#include <unistd.h>

int epoll_place_run(const struct epoll_place *place, int target, int number,
		    int (*act)(int epoll, int number, void *arg), void *arg)
{
	bool taken;
	int r;

	if (target == number)
		return act(place->epoll, number, arg);
	taken = dup2(number, place->spare) >= 0;
	if (!taken && errno != EBADF)
		return -errno;
	if (dup2(target, number) < 0)
		return -errno;
	r = act(number == place->epoll ? place->spare : place->epoll, number, arg);
	if (!taken)
		close(number);
	else if (dup2(place->spare, number) < 0)
		return -errno;
	return r;
}

/* An entry that exists cannot be added. One that does not is removed again. */
static int probe(int epoll, int number, void *arg)
{
	struct epoll_event event = {.events = 0};
	bool *there = arg;

	if (epoll_ctl(epoll, EPOLL_CTL_ADD, number, &event) < 0)
		*there = errno == EEXIST;
	else
		(void)epoll_ctl(epoll, EPOLL_CTL_DEL, number, NULL);
	return 0;
}

struct check {
	int epoll;
	struct epoll_guess *guesses;
	size_t n;
};

static void *check_main(void *arg)
{
	const struct check *check = arg;
	struct epoll_place place = {.epoll = check->epoll};

	if (unshare(CLONE_FILES) < 0)
		return NULL;
	place.spare = fcntl(check->epoll, F_DUPFD_CLOEXEC, 0);
	for (size_t i = 0; i < check->n && place.spare >= 0; i++) {
		struct epoll_guess *guess = &check->guesses[i];

		if (epoll_place_run(&place, guess->target, guess->number, probe, &guess->right) < 0)
			return NULL;
	}
	return NULL;
}

void epoll_place_check(int epoll, struct epoll_guess *guesses, size_t n)
{
	struct check check = {epoll, guesses, n};
	pthread_t thread;

	for (size_t i = 0; i < n; i++)
		guesses[i].right = false;
	if (n && pthread_create(&thread, NULL, check_main, &check) == 0)
		pthread_join(thread, NULL);
}
