/* The first thread has called pthread_exit() and is a zombie; the other threads, and the memory, remain. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/syscall.h>

#include "tests/cases/case.h"

enum { WORDS = 100000 };

static uint32_t words[WORDS];
static atomic_uint turns;
static pthread_t leader;
static pid_t worker_tid;

static void *worker(void *arg)
{
	worker_tid = gettid();
	while (!case_going()) {
		turns++;
		case_sleep_ms(1);
	}
	return NULL;
}

static void *watcher(void *arg)
{
	pid_t me = gettid();
	pthread_t other;

	CHECK(pthread_join(leader, NULL) == 0);
	for (uint32_t i = 0; i < WORDS; i++)
		words[i] = i * 2654435761u;
	CHECK(pthread_create(&other, NULL, worker, NULL) == 0);
	case_wait();
	CHECK(gettid() == me && getpid() != me);
	for (uint32_t i = 0; i < WORDS; i++)
		CHECK(words[i] == i * 2654435761u);
	CHECK(pthread_join(other, NULL) == 0);
	CHECK(worker_tid != me);
	case_pass();
	return NULL;
}

int main(void)
{
	pthread_t thread;

	leader = pthread_self();
	CHECK(pthread_create(&thread, NULL, watcher, NULL) == 0);
	pthread_exit(NULL);
}
