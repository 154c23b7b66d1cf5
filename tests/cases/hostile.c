/*
 * A process whose state is as unfriendly to a supervisor as the kernel allows: a thread that spins with a
 * stack pointer into nowhere, threads that come and go, robust lists and a signal stack at addresses that are
 * not mapped, thousands of mappings, a name that a terminal would obey, filters of its own. All of it is
 * there afterwards.
 */
#include <linux/filter.h>
#include <linux/futex.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include "case.h"

#define NOWHERE 0x7ff123450000ull /* no mapping is made there */
#define NAME	"\033[2Jx\\\n"
enum { MAPPINGS = 4000, PAGE = 4096, COMERS = 2, SIGNAL_STACK = 64 << 10 };

static _Atomic uint64_t spins, comings;
static _Atomic bool over;
static void *mappings[MAPPINGS];

/* Counts with the stack pointer at NOWHERE; a signal would kill the process. */
static void *spin(void *arg)
{
	sigset_t all;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, NULL);
	__asm__ volatile("mov %%rsp, %%r12\n\t"
			 "mov %2, %%rsp\n"
			 "1:\n\t"
			 "lock incq (%0)\n\t"
			 "pause\n\t"
			 "cmpb $0, (%1)\n\t"
			 "je 1b\n\t"
			 "mov %%r12, %%rsp"
			 :
			 : "r"(&spins), "r"(&over), "r"((uint64_t)NOWHERE)
			 : "r12", "memory", "cc");
	return arg;
}

static void *come_and_go(void *arg)
{
	/* The kernel walks the list at the thread's end and finds nothing there. */
	syscall(SYS_set_robust_list, NOWHERE, sizeof(struct robust_list_head));
	atomic_fetch_add(&comings, 1);
	return arg;
}

static void *bring(void *arg)
{
	while (!atomic_load(&over)) {
		pthread_t thread;

		if (pthread_create(&thread, NULL, come_and_go, NULL) == 0)
			pthread_join(thread, NULL);
		case_sleep_ms(2);
	}
	return arg;
}

/* Each differs from its neighbours, so that the kernel joins none. */
static void map_many(void)
{
	for (int i = 0; i < MAPPINGS; i++) {
		mappings[i] = mmap(NULL, PAGE, i % 2 ? PROT_READ : PROT_READ | PROT_WRITE,
				   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		CHECK(mappings[i] != MAP_FAILED);
		if (i % 64 == 0)
			*(int *)mappings[i] = i;
	}
}

static void filter_self(void)
{
	struct sock_filter code[] = {BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
	struct sock_fprog program = {1, code};

	for (int i = 0; i < 4; i++) {
		CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
		CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
	}
}

static void *odd_thread(void *arg)
{
	const stack_t stack = {.ss_sp = (void *)NOWHERE, .ss_size = SIGNAL_STACK};
	struct robust_list_head *head;
	size_t len;
	stack_t now;

	CHECK(sigaltstack(&stack, NULL) == 0);
	CHECK(syscall(SYS_set_robust_list, NOWHERE + 1, sizeof(*head)) == 0);
	pthread_barrier_wait(arg);
	pthread_barrier_wait(arg);
	CHECK(sigaltstack(NULL, &now) == 0);
	CHECK(now.ss_sp == (void *)NOWHERE && now.ss_size == SIGNAL_STACK);
	CHECK(syscall(SYS_get_robust_list, 0, &head, &len) == 0);
	CHECK((uint64_t)head == NOWHERE + 1);
	return NULL;
}

int main(void)
{
	pthread_t spinner, comers[COMERS], odd;
	pthread_barrier_t barrier;
	char name[16] = "";
	uint64_t before, came;

	map_many();
	filter_self();
	CHECK(prctl(PR_SET_NAME, NAME) == 0);
	pthread_barrier_init(&barrier, NULL, 2);
	CHECK(pthread_create(&odd, NULL, odd_thread, &barrier) == 0);
	pthread_barrier_wait(&barrier);
	CHECK(pthread_create(&spinner, NULL, spin, NULL) == 0);
	for (int i = 0; i < COMERS; i++)
		CHECK(pthread_create(&comers[i], NULL, bring, NULL) == 0);
	case_wait();
	before = atomic_load(&spins);
	came = atomic_load(&comings);
	while (atomic_load(&spins) < before + 1000 || atomic_load(&comings) < came + 3)
		case_sleep_ms(5);
	pthread_barrier_wait(&barrier);
	CHECK(pthread_join(odd, NULL) == 0);
	CHECK(prctl(PR_GET_NAME, name) == 0 && !strcmp(name, NAME));
	for (int i = 0; i < MAPPINGS; i += 64)
		CHECK(*(int *)mappings[i] == i);
	atomic_store(&over, 1);
	CHECK(pthread_join(spinner, NULL) == 0);
	for (int i = 0; i < COMERS; i++)
		CHECK(pthread_join(comers[i], NULL) == 0);
	case_pass();
}
