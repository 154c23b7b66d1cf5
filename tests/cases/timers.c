/* Interval timers and POSIX timers continue with their remaining time, ids and overruns. */
#include <signal.h>
#include <sys/time.h>
#include <time.h>

#include "tests/cases/case.h"

static volatile sig_atomic_t alarms, queued, value;

static void on_alarm(int number)
{
	alarms++;
}

static void on_timer(int number, siginfo_t *info, void *context)
{
	queued++;
	value = info->si_value.sival_int;
}

int main(void)
{
	struct itimerval interval = {.it_value.tv_usec = 20000, .it_interval.tv_usec = 20000},
			 far = {.it_value.tv_sec = 5000}, left;
	struct itimerspec every = {.it_value.tv_nsec = 30000000, .it_interval.tv_nsec = 30000000},
			  later = {.it_value.tv_sec = 4000}, rest;
	struct sigaction action = {.sa_sigaction = on_timer, .sa_flags = SA_SIGINFO | SA_RESTART};
	struct sigevent by_signal = {
		.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGRTMIN + 3, .sigev_value.sival_int = 4711};
	struct sigevent silent = {.sigev_notify = SIGEV_NONE};
	timer_t first, second, third;

	signal(SIGALRM, on_alarm);
	CHECK(sigaction(SIGRTMIN + 3, &action, NULL) == 0);
	CHECK(setitimer(ITIMER_REAL, &interval, NULL) == 0 && setitimer(ITIMER_VIRTUAL, &far, NULL) == 0);
	CHECK(timer_create(CLOCK_MONOTONIC, &silent, &first) == 0 &&
	      timer_create(CLOCK_MONOTONIC, &by_signal, &second) == 0 &&
	      timer_create(CLOCK_REALTIME, &silent, &third) == 0);
	CHECK(timer_delete(first) == 0); /* the ids have a gap */
	CHECK(timer_settime(second, 0, &every, NULL) == 0 && timer_settime(third, 0, &later, NULL) == 0);

	case_wait();
	int alarms_then = alarms, queued_then = queued;
	for (int i = 0; i < 300 && (alarms < alarms_then + 3 || queued < queued_then + 3); i++)
		case_sleep_ms(10);
	CHECK(alarms >= alarms_then + 3 && queued >= queued_then + 3 && value == 4711);
	CHECK(getitimer(ITIMER_REAL, &left) == 0 && left.it_interval.tv_usec == 20000);
	CHECK(getitimer(ITIMER_VIRTUAL, &left) == 0 && left.it_value.tv_sec > 4500 &&
	      left.it_value.tv_sec <= 5000);
	CHECK(timer_gettime(third, &rest) == 0 && rest.it_value.tv_sec > 3700 &&
	      rest.it_value.tv_sec <= 4000);
	CHECK(timer_delete(second) == 0 && timer_delete(third) == 0);
	case_pass();
}
