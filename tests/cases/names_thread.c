/* Numbers of threads: gettid(), signals, scheduling and inspection by number, and owners of futexes. */
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>

#include "tests/cases/case.h"

#define THREADS 4
#ifndef sigev_notify_thread_id
#define sigev_notify_thread_id _sigev_un._tid
#endif

struct worker {
	pthread_t thread;
	pid_t tid, again;
	sem_t go, done;
	int end;
};

static volatile sig_atomic_t got_tid, got_sender, got_value;

static pid_t tid(void)
{
	return (pid_t)syscall(SYS_gettid);
}

static void on_signal(int sig, siginfo_t *info, void *context)
{
	got_sender = info->si_pid;
	got_value = info->si_value.sival_int;
	got_tid = tid();
}

static void *work(void *arg)
{
	struct worker *w = arg;

	w->tid = tid();
	sem_post(&w->done);
	for (;;) {
		while (sem_wait(&w->go) < 0)
			continue;
		if (w->end)
			return NULL;
		w->again = tid();
		sem_post(&w->done);
	}
}

static void wait_done(struct worker *w)
{
	while (sem_wait(&w->done) < 0)
		CHECK(errno == EINTR);
}

static void await_signal(pid_t by)
{
	for (int i = 0; i < 5000 && got_tid != by; i++)
		case_sleep_ms(1);
	CHECK(got_tid == by);
	got_tid = 0;
}

static void check_timer(struct worker *w)
{
	struct sigevent event = {
		.sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGUSR1, .sigev_value.sival_int = 9};
	struct itimerspec soon = {.it_value.tv_nsec = 1000000};
	timer_t timer;

	event.sigev_notify_thread_id = w->tid;
	CHECK(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0 &&
	      timer_settime(timer, 0, &soon, NULL) == 0);
	await_signal(w->tid);
	CHECK(got_value == 9);
	CHECK(timer_delete(timer) == 0);
}

static void check_worker(struct worker *w)
{
	siginfo_t info = {.si_signo = SIGUSR1, .si_code = SI_QUEUE};
	struct sched_param param;
	cpu_set_t cpus;
	uint64_t head;
	size_t len;

	sem_post(&w->go);
	wait_done(w);
	CHECK(w->again == w->tid);
	CHECK(syscall(SYS_tgkill, getpid(), w->tid, SIGUSR1) == 0);
	await_signal(w->tid);
	CHECK(got_sender == getpid());
	CHECK(syscall(SYS_tkill, w->tid, SIGUSR1) == 0);
	await_signal(w->tid);
	CHECK(pthread_kill(w->thread, SIGUSR1) == 0);
	await_signal(w->tid);
	info.si_pid = getpid();
	info.si_value.sival_int = 31;
	CHECK(syscall(SYS_rt_tgsigqueueinfo, getpid(), w->tid, SIGUSR1, &info) == 0);
	await_signal(w->tid);
	CHECK(got_value == 31 && got_sender == getpid());
	CHECK(syscall(SYS_sched_getscheduler, w->tid) == SCHED_OTHER &&
	      syscall(SYS_sched_getparam, w->tid, &param) == 0);
	CHECK(sched_getaffinity(w->tid, sizeof(cpus), &cpus) == 0 &&
	      sched_setaffinity(w->tid, sizeof(cpus), &cpus) == 0);
	CHECK(sched_rr_get_interval(w->tid, &(struct timespec){0}) == 0);
	CHECK(setpriority(PRIO_PROCESS, (id_t)w->tid, 3) == 0 &&
	      getpriority(PRIO_PROCESS, (id_t)w->tid) == 3);
	CHECK(syscall(SYS_get_robust_list, w->tid, &head, &len) == 0 && len == 24);
	CHECK(syscall(SYS_ioprio_get, 1, w->tid) >= 0);
	CHECK(syscall(SYS_tgkill, getpid(), 2147480000, 0) < 0 && errno == ESRCH);
	check_timer(w);
}

/* ---- futexes whose word holds the owner's number ---- */

static pthread_mutex_t *shared_mutex(int protocol, int robust)
{
	pthread_mutex_t *mutex = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	pthread_mutexattr_t attr;

	CHECK(mutex != MAP_FAILED);
	pthread_mutexattr_init(&attr);
	pthread_mutexattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
	pthread_mutexattr_settype(&attr, PTHREAD_MUTEX_ERRORCHECK);
	CHECK(pthread_mutexattr_setprotocol(&attr, protocol) == 0);
	CHECK(pthread_mutexattr_setrobust(&attr, robust) == 0);
	CHECK(pthread_mutex_init(mutex, &attr) == 0);
	return mutex;
}

static void *lock_and_leave(void *arg)
{
	CHECK(pthread_mutex_lock(arg) == 0);
	return NULL; /* still held */
}

static void *lock_wait_unlock(void *arg)
{
	pthread_mutex_t *mutex = arg;

	CHECK(pthread_mutex_lock(mutex) == 0);
	case_sleep_ms(50);
	CHECK(pthread_mutex_unlock(mutex) == 0);
	return NULL;
}

static void check_mutex(int protocol)
{
	pthread_mutex_t *mutex = shared_mutex(protocol, PTHREAD_MUTEX_ROBUST);
	pthread_t thread;
	int status;
	pid_t pid;

	CHECK(pthread_mutex_lock(mutex) == 0 && pthread_mutex_lock(mutex) == EDEADLK &&
	      pthread_mutex_unlock(mutex) == 0);
	/* contended, by a thread and by a process */
	CHECK(pthread_create(&thread, NULL, lock_wait_unlock, mutex) == 0);
	case_sleep_ms(10);
	CHECK(pthread_mutex_lock(mutex) == 0 && pthread_mutex_unlock(mutex) == 0);
	CHECK(pthread_join(thread, NULL) == 0);
	pid = fork();
	if (pid == 0) {
		lock_wait_unlock(mutex);
		_exit(0);
	}
	case_sleep_ms(10);
	CHECK(pthread_mutex_lock(mutex) == 0 && pthread_mutex_unlock(mutex) == 0);
	CHECK(waitpid(pid, &status, 0) == pid && status == 0);
	/* an owner that exits: a thread, and a process */
	CHECK(pthread_create(&thread, NULL, lock_and_leave, mutex) == 0 && pthread_join(thread, NULL) == 0);
	CHECK(pthread_mutex_lock(mutex) == EOWNERDEAD && pthread_mutex_consistent(mutex) == 0);
	CHECK(pthread_mutex_unlock(mutex) == 0);
	pid = fork();
	if (pid == 0) {
		lock_and_leave(mutex);
		_exit(0);
	}
	CHECK(waitpid(pid, &status, 0) == pid && status == 0);
	CHECK(pthread_mutex_lock(mutex) == EOWNERDEAD && pthread_mutex_consistent(mutex) == 0);
	CHECK(pthread_mutex_unlock(mutex) == 0);
	munmap(mutex, 4096);
}

int main(void)
{
	struct sigaction action = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO | SA_RESTART};
	static struct worker workers[THREADS];
	pthread_mutex_t *held = shared_mutex(PTHREAD_PRIO_NONE, PTHREAD_MUTEX_ROBUST);

	CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
	for (int i = 0; i < THREADS; i++) {
		CHECK(sem_init(&workers[i].go, 0, 0) == 0 && sem_init(&workers[i].done, 0, 0) == 0);
		CHECK(pthread_create(&workers[i].thread, NULL, work, &workers[i]) == 0);
		wait_done(&workers[i]);
		CHECK(workers[i].tid != getpid());
		check_worker(&workers[i]);
	}
	check_mutex(PTHREAD_PRIO_NONE);
	check_mutex(PTHREAD_PRIO_INHERIT);
	CHECK(pthread_mutex_lock(held) == 0);
	case_wait();
	CHECK(pthread_mutex_lock(held) == EDEADLK && pthread_mutex_unlock(held) == 0);
	for (int i = 0; i < THREADS; i++)
		check_worker(&workers[i]);
	check_mutex(PTHREAD_PRIO_NONE);
	check_mutex(PTHREAD_PRIO_INHERIT);
	for (int i = 0; i < THREADS; i++) {
		workers[i].end = 1;
		sem_post(&workers[i].go);
		CHECK(pthread_join(workers[i].thread, NULL) == 0);
		for (int n = 0; n < 2000 && syscall(SYS_tgkill, getpid(), workers[i].tid, 0) == 0; n++)
			case_sleep_ms(1); /* pthread_join() returns before the thread has disappeared */
		CHECK(syscall(SYS_tgkill, getpid(), workers[i].tid, 0) < 0 && errno == ESRCH);
	}
	case_pass();
}
