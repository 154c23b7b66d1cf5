/* An epoll instance keeps its entries with their data: level and edge triggered, one-shot spent and armed,
 * nested, over a duplicate. */
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include "tests/cases/case.h"

static void add(int epoll, int fd, uint32_t events, uint64_t data)
{
	struct epoll_event event = {.events = events, .data.u64 = data};

	CHECK(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0);
}

int main(void)
{
	int outer = epoll_create1(EPOLL_CLOEXEC), inner = epoll_create1(0);
	int level = eventfd(3, EFD_NONBLOCK), spent = eventfd(0, EFD_NONBLOCK),
	    armed = eventfd(0, EFD_NONBLOCK);
	struct epoll_event got[8];
	uint64_t seen = 0;

	add(outer, level, EPOLLIN, 0x1111111111111111);
	add(outer, inner, EPOLLIN, 0x2222222222222222);
	add(inner, armed, EPOLLIN | EPOLLONESHOT, 0x3333333333333333);
	add(outer, spent, EPOLLIN | EPOLLONESHOT, 0x4444444444444444);
	CHECK(eventfd_write(spent, 1) == 0);
	CHECK(epoll_wait(outer, got, 8, 0) == 2);
	int twin = dup(outer);

	case_wait();
	CHECK(epoll_wait(outer, got, 8, 0) == 1 && got[0].data.u64 == 0x1111111111111111 &&
	      got[0].events == EPOLLIN);
	CHECK(eventfd_write(armed, 1) == 0 && eventfd_write(spent, 1) == 0);
	int n = epoll_wait(twin, got, 8, 100);
	for (int i = 0; i < n; i++)
		seen ^= got[i].data.u64;
	CHECK(n == 2 && seen == (0x1111111111111111 ^ 0x2222222222222222));
	CHECK(epoll_wait(inner, got, 8, 0) == 1 && got[0].data.u64 == 0x3333333333333333);
	CHECK(epoll_wait(inner, got, 8, 0) == 0);
	struct epoll_event again = {.events = EPOLLIN, .data.u64 = 5};
	CHECK(epoll_ctl(outer, EPOLL_CTL_MOD, spent, &again) == 0 &&
	      epoll_ctl(outer, EPOLL_CTL_DEL, level, NULL) == 0);
	CHECK(epoll_wait(outer, got, 8, 0) == 1 && got[0].data.u64 == 5);
	case_pass();
}
