/* eventfd's count, signalfd's mask with a pending signal, timerfd's unread expirations and remaining time.
 * Duplicates of a signalfd. */
#include <fcntl.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <sys/timerfd.h>

#include "tests/cases/case.h"

int main(void)
{
	struct itimerspec every = {.it_value.tv_nsec = 10000000, .it_interval.tv_nsec = 10000000},
			  far = {.it_value.tv_sec = 1000}, left;
	struct signalfd_siginfo info;
	uint64_t count;
	sigset_t set;

	int counter = eventfd(0, EFD_NONBLOCK), semaphore = eventfd(5, EFD_SEMAPHORE);
	CHECK(eventfd_write(counter, 0xfffffffffffffffe - 7) == 0);
	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	sigaddset(&set, SIGRTMIN + 2);
	CHECK(sigprocmask(SIG_BLOCK, &set, NULL) == 0);
	int signals = signalfd(-1, &set, SFD_NONBLOCK);
	CHECK(signals >= 0);
	CHECK(sigqueue(getpid(), SIGRTMIN + 2, (union sigval){.sival_int = 42}) == 0);
	CHECK(sigqueue(getpid(), SIGRTMIN + 2, (union sigval){.sival_int = 43}) == 0);
	int ticks = timerfd_create(CLOCK_MONOTONIC, 0), once = timerfd_create(CLOCK_REALTIME, TFD_NONBLOCK);
	CHECK(timerfd_settime(ticks, 0, &every, NULL) == 0 && timerfd_settime(once, 0, &far, NULL) == 0);
	case_sleep_ms(50);

	case_wait();
	CHECK(eventfd_read(counter, &count) == 0 && count == 0xfffffffffffffffe - 7);
	for (int i = 0; i < 5; i++)
		CHECK(eventfd_read(semaphore, &count) == 0 && count == 1);
	CHECK(read(signals, &info, sizeof(info)) == sizeof(info) && info.ssi_int == 42 &&
	      info.ssi_pid == (uint32_t)getpid());
	CHECK(read(signals, &info, sizeof(info)) == sizeof(info) && info.ssi_int == 43);
	CHECK(read(signals, &info, sizeof(info)) == -1 && errno == EAGAIN);
	CHECK(raise(SIGUSR1) == 0 && read(signals, &info, sizeof(info)) == sizeof(info) &&
	      info.ssi_signo == SIGUSR1);
	int copies[] = {dup(signals), dup2(signals, 77), fcntl(signals, F_DUPFD_CLOEXEC, 200), dup(77)};
	for (unsigned i = 0; i < sizeof(copies) / sizeof(copies[0]); i++)
		CHECK(copies[i] >= 0 && kill(getpid(), SIGUSR1) == 0 &&
		      read(copies[i], &info, sizeof(info)) == sizeof(info) &&
		      info.ssi_pid == (uint32_t)getpid());
	CHECK(read(ticks, &count, sizeof(count)) == sizeof(count) && count >= 4);
	CHECK(read(ticks, &count, sizeof(count)) == sizeof(count) && count >= 1 && count < 20);
	CHECK(timerfd_gettime(ticks, &left) == 0 && left.it_interval.tv_nsec == 10000000);
	CHECK(timerfd_gettime(once, &left) == 0 && left.it_value.tv_sec > 700 &&
	      left.it_value.tv_sec <= 1000);
	CHECK(read(once, &count, sizeof(count)) == -1 && errno == EAGAIN);
	case_pass();
}
