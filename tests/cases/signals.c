/* Handlers, masks, the alternate stack, pending signals with their siginfo and order, for the process and for
 * a thread. */
#include <pthread.h>
#include <signal.h>
#include <stdint.h>

#include "tests/cases/case.h"

static char stack[65536];
static volatile int order[8], got, on_stack, code;
static volatile pid_t sender;
static pthread_barrier_t barrier;

static void handler(int number, siginfo_t *info, void *context)
{
	char here;

	on_stack =
		(uintptr_t)&here >= (uintptr_t)stack && (uintptr_t)&here < (uintptr_t)stack + sizeof(stack);
	order[got++ & 7] = info->si_value.sival_int;
	code = info->si_code;
	sender = info->si_pid;
}

static void *thread(void *arg)
{
	sigset_t set, pending;

	sigemptyset(&set);
	sigaddset(&set, SIGUSR2);
	CHECK(pthread_sigmask(SIG_BLOCK, &set, NULL) == 0);
	CHECK(pthread_sigqueue(pthread_self(), SIGUSR2, (union sigval){.sival_int = 99}) == 0);
	pthread_barrier_wait(&barrier);
	pthread_barrier_wait(&barrier);
	siginfo_t info;
	CHECK(sigpending(&pending) == 0 && sigismember(&pending, SIGUSR2));
	CHECK(sigwaitinfo(&set, &info) == SIGUSR2 && info.si_value.sival_int == 99 &&
	      info.si_code == SI_QUEUE && info.si_pid == getpid());
	return NULL;
}

int main(void)
{
	struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART},
			 now;
	stack_t alternate = {.ss_sp = stack, .ss_size = sizeof(stack)};
	sigset_t set, mask;
	pthread_t other;

	CHECK(sigaltstack(&alternate, NULL) == 0);
	sigaddset(&action.sa_mask, SIGWINCH);
	for (int i = 0; i < 3; i++)
		CHECK(sigaction(SIGRTMIN + i, &action, NULL) == 0);
	signal(SIGPIPE, SIG_IGN);
	sigemptyset(&set);
	for (int i = 0; i < 3; i++)
		sigaddset(&set, SIGRTMIN + i);
	sigaddset(&set, SIGUSR2);
	CHECK(sigprocmask(SIG_BLOCK, &set, NULL) == 0); /* the thread's too */
	CHECK(pthread_barrier_init(&barrier, NULL, 2) == 0 &&
	      pthread_create(&other, NULL, thread, NULL) == 0);
	pthread_barrier_wait(&barrier);
	for (int i = 0; i < 4; i++)
		CHECK(sigqueue(getpid(), SIGRTMIN + (i & 1), (union sigval){.sival_int = i}) == 0);

	case_wait();
	CHECK(got == 0 && sigprocmask(SIG_BLOCK, NULL, &mask) == 0 && sigismember(&mask, SIGRTMIN + 1) &&
	      !sigismember(&mask, SIGTERM));
	CHECK(sigaction(SIGPIPE, NULL, &now) == 0 && now.sa_handler == SIG_IGN);
	CHECK(sigaction(SIGRTMIN, NULL, &now) == 0 && now.sa_sigaction == handler &&
	      sigismember(&now.sa_mask, SIGWINCH) && (now.sa_flags & SA_ONSTACK));
	pthread_barrier_wait(&barrier);
	CHECK(pthread_join(other, NULL) == 0);
	sigdelset(&set, SIGRTMIN + 1);
	CHECK(sigprocmask(SIG_UNBLOCK, &set, NULL) == 0); /* RTMIN: 0, 2 */
	CHECK(got == 2 && order[0] == 0 && order[1] == 2 && on_stack && code == SI_QUEUE &&
	      sender == getpid());
	sigaddset(&set, SIGRTMIN + 1);
	CHECK(sigprocmask(SIG_UNBLOCK, &set, NULL) == 0); /* RTMIN + 1: 1, 3 */
	CHECK(got == 4 && order[2] == 1 && order[3] == 3);
	CHECK(sigaltstack(NULL, &alternate) == 0 && alternate.ss_sp == stack &&
	      alternate.ss_size == sizeof(stack));
	case_pass();
}
