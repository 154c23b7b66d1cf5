/* Clocks of processes and threads, whose ids programs make of a number, and timers on them. */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "tests/cases/case.h"

enum { MOST_S = 20 };

static atomic_int stop, expired;

static void work(void)
{
	for (volatile int i = 0; i < 100000; i++)
		;
}

static void *run(void *arg)
{
	while (!stop)
		work();
	return NULL;
}

static void on_timer(int signal)
{
	expired++;
}

static double used(clockid_t clock)
{
	struct timespec time, step;

	CHECK(clock_getres(clock, &step) == 0);
	CHECK(clock_gettime(clock, &time) == 0);
	return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static void check_advances(clockid_t clock)
{
	const double before = used(clock);

	for (int ms = 0; used(clock) <= before && ms < MOST_S * 1000; ms += 10)
		case_sleep_ms(10);
	CHECK(used(clock) > before);
}

static void check_clocks(clockid_t thread, pid_t child)
{
	clockid_t own, other;

	work();
	CHECK(clock_getcpuclockid(0, &own) == 0);
	check_advances(own);
	CHECK(clock_getcpuclockid(getpid(), &own) == 0);
	check_advances(own);
	CHECK(used(own) <= used(CLOCK_PROCESS_CPUTIME_ID));
	check_advances(thread);
	CHECK(clock_getcpuclockid(child, &other) == 0);
	check_advances(other);
}

int main(void)
{
	const struct itimerspec often = {.it_value.tv_nsec = 20000000, .it_interval.tv_nsec = 20000000};
	struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1};
	struct sigaction action = {.sa_handler = on_timer, .sa_flags = SA_RESTART};
	pthread_t thread;
	clockid_t clock;
	timer_t timer;
	pid_t child = fork();
	int before;

	if (child == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		for (;;)
			work();
	}
	CHECK(child > 0);
	CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
	CHECK(pthread_create(&thread, NULL, run, NULL) == 0);
	CHECK(pthread_getcpuclockid(thread, &clock) == 0);
	CHECK(timer_create(clock, &event, &timer) == 0);
	CHECK(timer_settime(timer, 0, &often, NULL) == 0);
	check_clocks(clock, child);
	case_wait();
	check_clocks(clock, child);
	before = expired;
	for (int ms = 0; expired == before && ms < MOST_S * 1000; ms += 10)
		case_sleep_ms(10);
	CHECK(expired != before);
	stop = 1;
	CHECK(pthread_join(thread, NULL) == 0);
	CHECK(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
	case_pass();
}
