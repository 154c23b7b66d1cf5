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

static void *waits_on(void *arg)
{
	struct epoll_event event;

	/* Nothing is called between the end of the wait and the next call. */
	CHECK(epoll_wait(set, &event, 1, TIMEOUT_MS) == -1 && errno == EINTR);
	while (!word)
		syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 0, NULL, NULL, 0);
	woken = 1;
	return NULL;
}

struct call {
	uint64_t number, rdi, rsi, rdx, r10, r8, r9;
};

/* Makes a call. Returns its result; *call gets the registers as they are afterwards. */
static int64_t make(struct call *call)
{
	int64_t result = (int64_t)call->number;
	register uint64_t r10 __asm__("r10") = call->r10;
	register uint64_t r8 __asm__("r8") = call->r8;
	register uint64_t r9 __asm__("r9") = call->r9;

	__asm__ volatile("syscall"
			 : "+a"(result), "+D"(call->rdi), "+S"(call->rsi), "+d"(call->rdx), "+r"(r10),
			   "+r"(r8), "+r"(r9)
			 :
			 : "rcx", "r11", "memory");
	call->r10 = r10;
	call->r8 = r8;
	call->r9 = r9;
	return result;
}

static void *keeps_registers(void *arg)
{
	struct epoll_event event;
	const struct call wait = {SYS_epoll_pwait, (uint64_t)set, (uint64_t)&event, 1, TIMEOUT_MS, 0, 0},
			  next = {SYS_getppid, 11, 12, 13, 14, 15, 16};
	struct call first = wait, second = next;

	CHECK(make(&first) == -EINTR);
	CHECK(make(&second) == getppid());
	CHECK(memcmp(&first, &wait, sizeof(first)) == 0);
	CHECK(memcmp(&second, &next, sizeof(second)) == 0);
	return NULL;
}

/* The supervisor continues the first call, which a checkpoint interrupts, with a timeout of its own. */
static void *waits_twice(void *arg)
{
	const struct timespec timeout = {.tv_sec = TIMEOUT_MS / 1000};

	for (int i = 0; i < 2; i++) {
		struct epoll_event event;
		const struct call wait = {
			SYS_epoll_pwait2, (uint64_t)set, (uint64_t)&event, 1, (uint64_t)&timeout, 0, 0};
		struct call now = wait;

		CHECK(make(&now) == -EINTR);
		CHECK(memcmp(&now, &wait, sizeof(now)) == 0);
	}
	return NULL;
}

static pthread_t start(void *(*function)(void *))
{
	pthread_t thread;

	CHECK(pthread_create(&thread, NULL, function, NULL) == 0);
	case_sleep_ms(50); /* until it waits */
	return thread;
}

static void run_handler(pthread_t thread)
{
	const int before = handled;

	CHECK(pthread_kill(thread, SIGUSR1) == 0);
	while (handled == before)
		case_sleep_ms(1);
	case_sleep_ms(50); /* until it waits again */
}

int main(void)
{
	struct sigaction action = {.sa_handler = handle};
	pthread_t keeping, waiting, twice;

	CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
	set = epoll_create1(EPOLL_CLOEXEC);
	CHECK(set >= 0);
	keeping = start(keeps_registers);
	run_handler(keeping);
	CHECK(pthread_join(keeping, NULL) == 0);
	waiting = start(waits_on);
	run_handler(waiting);
	twice = start(waits_twice);
	case_wait();
	run_handler(twice);
	run_handler(twice);
	CHECK(pthread_join(twice, NULL) == 0);
	word = 1;
	for (int ms = 0; !woken && ms < PATIENCE_MS; ms += 10) {
		syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
		case_sleep_ms(10);
	}
	CHECK(woken);
	CHECK(pthread_join(waiting, NULL) == 0);
	case_pass();
}
