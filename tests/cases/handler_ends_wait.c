/* A wait with a timeout ends with EINTR when a handler runs. The next call of the thread is a call of its
 * own: it keeps its argument registers, and continues as itself after a rollback. */
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <sys/syscall.h>

#include "tests/cases/case.h"

enum { TIMEOUT_MS = 100000, PATIENCE_MS = 10000 };

static int set;
static _Atomic uint32_t word;
static atomic_int handled, woken;

static void handle(int signal)
{
	handled++;
}

static void wait_until_handled(void)
{
	struct epoll_event event;
	/* No call of its own comes between the end of the wait and the next call. */
	int n = epoll_wait(set, &event, 1, TIMEOUT_MS);

	if (n != -1 || errno != EINTR)
		case_fail("epoll_wait returned %d", n);
}

static void *waits_on(void *arg)
{
	wait_until_handled();
	while (!word)
		syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 0, NULL, NULL, 0);
	woken = 1;
	return NULL;
}

static void *keeps_registers(void *arg)
{
	uint64_t rdi = 11, rsi = 12, rdx = 13, result = SYS_getppid;
	register uint64_t r10 __asm__("r10") = 14;
	register uint64_t r8 __asm__("r8") = 15;
	register uint64_t r9 __asm__("r9") = 16;

	wait_until_handled();
	r10 = 14;
	r8 = 15;
	r9 = 16;
	__asm__ volatile("syscall"
			 : "+a"(result), "+D"(rdi), "+S"(rsi), "+d"(rdx), "+r"(r10), "+r"(r8), "+r"(r9)
			 :
			 : "rcx", "r11", "memory");
	CHECK(rdi == 11 && rsi == 12 && rdx == 13 && r10 == 14 && r8 == 15 && r9 == 16);
	return NULL;
}

/* Starts a thread, and sends it signals until its wait has ended. */
static pthread_t begin(void *(*function)(void *))
{
	const int before = handled;
	pthread_t thread;

	CHECK(pthread_create(&thread, NULL, function, NULL) == 0);
	case_sleep_ms(50); /* until it waits */
	CHECK(pthread_kill(thread, SIGUSR1) == 0);
	while (handled == before)
		case_sleep_ms(1);
	return thread;
}

int main(void)
{
	struct sigaction action = {.sa_handler = handle};
	pthread_t waiting;

	CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
	set = epoll_create1(EPOLL_CLOEXEC);
	CHECK(set >= 0);
	CHECK(pthread_join(begin(keeps_registers), NULL) == 0);
	waiting = begin(waits_on);
	case_sleep_ms(50);
	case_wait();
	word = 1;
	for (int ms = 0; !woken && ms < PATIENCE_MS; ms += 10) {
		syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
		case_sleep_ms(10);
	}
	CHECK(woken);
	CHECK(pthread_join(waiting, NULL) == 0);
	case_pass();
}
