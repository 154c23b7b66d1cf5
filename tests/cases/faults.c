/* Threads that fault all the time, like those of a runtime with guard pages: checkpoints meet threads with
 * a fault's signal pending. */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/mman.h>

#include "tests/cases/case.h"

enum { THREADS = 8, PAGE = 4096 };

static char *pages;
static atomic_int stop;
static atomic_long faults;

/* Unprotects the page that was touched. Any other fault is an error. */
static void on_fault(int signal, siginfo_t *info, void *context)
{
	char *at = info->si_addr;

	if (info->si_code != SEGV_ACCERR || at < pages || at >= pages + (long)THREADS * PAGE ||
	    mprotect((char *)((uintptr_t)at & ~(uintptr_t)(PAGE - 1)), PAGE, PROT_READ | PROT_WRITE) < 0)
		_exit(9);
	atomic_fetch_add(&faults, 1);
}

static void *run(void *arg)
{
	volatile long *page = (volatile long *)(void *)(pages + (long)arg * PAGE);
	long n = 0;

	while (!atomic_load(&stop)) {
		CHECK(mprotect((void *)(uintptr_t)page, PAGE, PROT_NONE) == 0);
		CHECK(*page == n); /* faults */
		*page = ++n;
	}
	return NULL;
}

int main(void)
{
	struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO};
	pthread_t threads[THREADS];
	long before;

	pages = mmap(NULL, (size_t)THREADS * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
		     0);
	CHECK(pages != MAP_FAILED && sigaction(SIGSEGV, &action, NULL) == 0);
	for (long i = 0; i < THREADS; i++)
		CHECK(pthread_create(&threads[i], NULL, run, (void *)i) == 0);
	case_wait();
	before = atomic_load(&faults);
	case_sleep_ms(50);
	CHECK(atomic_load(&faults) > before);
	atomic_store(&stop, 1);
	for (long i = 0; i < THREADS; i++)
		CHECK(pthread_join(threads[i], NULL) == 0);
	case_pass();
}
