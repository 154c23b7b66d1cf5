/* Threads with TLS, names, masks, robust and recursive mutexes held over the checkpoint, a rwlock, a barrier,
 * a dead leader's children. */
#include <pthread.h>
#include <sys/syscall.h>

#include "tests/cases/case.h"

enum { THREADS = 64 };

static __thread long own;
static pthread_mutex_t robust, recursive;
static pthread_rwlock_t rwlock = PTHREAD_RWLOCK_INITIALIZER;
static pthread_barrier_t start, end;
static pid_t tids[THREADS];

static void *run(void *arg)
{
	long me = (long)arg;
	char name[16], now[16];

	own = me * 1000003;
	tids[me] = (pid_t)syscall(SYS_gettid);
	snprintf(name, sizeof(name), "thread %ld", me);
	CHECK(pthread_setname_np(pthread_self(), name) == 0);
	CHECK(pthread_rwlock_rdlock(&rwlock) == 0);
	pthread_barrier_wait(&start);
	pthread_barrier_wait(&end);
	CHECK(own == me * 1000003 && tids[me] == (pid_t)syscall(SYS_gettid));
	CHECK(pthread_getname_np(pthread_self(), now, sizeof(now)) == 0 && strcmp(now, name) == 0);
	CHECK(pthread_rwlock_unlock(&rwlock) == 0);
	return arg;
}

static void *dies_holding(void *arg)
{
	CHECK(pthread_mutex_lock(&robust) == 0);
	pthread_barrier_wait(&start);
	pthread_barrier_wait(&end);
	return NULL; /* with the mutex */
}

int main(void)
{
	pthread_t thread[THREADS], holder;
	pthread_mutexattr_t attr;
	void *result;

	CHECK(pthread_mutexattr_init(&attr) == 0 &&
	      pthread_mutexattr_setrobust(&attr, PTHREAD_MUTEX_ROBUST) == 0);
	CHECK(pthread_mutex_init(&robust, &attr) == 0 &&
	      pthread_mutexattr_setrobust(&attr, PTHREAD_MUTEX_STALLED) == 0);
	CHECK(pthread_mutexattr_settype(&attr, PTHREAD_MUTEX_RECURSIVE) == 0 &&
	      pthread_mutex_init(&recursive, &attr) == 0);
	CHECK(pthread_mutex_lock(&recursive) == 0 && pthread_mutex_lock(&recursive) == 0);
	CHECK(pthread_barrier_init(&start, NULL, THREADS + 2) == 0 &&
	      pthread_barrier_init(&end, NULL, THREADS + 2) == 0);
	for (long i = 0; i < THREADS; i++)
		CHECK(pthread_create(&thread[i], NULL, run, (void *)i) == 0);
	CHECK(pthread_create(&holder, NULL, dies_holding, NULL) == 0);
	pthread_barrier_wait(&start);
	case_sleep_ms(20);

	case_wait();
	CHECK(pthread_rwlock_trywrlock(&rwlock) == EBUSY && pthread_mutex_trylock(&robust) == EBUSY);
	CHECK(pthread_mutex_trylock(&recursive) == 0); /* a third time: it is ours */
	for (int i = 0; i < 3; i++)
		CHECK(pthread_mutex_unlock(&recursive) == 0);
	CHECK(pthread_mutex_unlock(&recursive) == EPERM);
	pthread_barrier_wait(&end);
	for (long i = 0; i < THREADS; i++)
		CHECK(pthread_join(thread[i], &result) == 0 && (long)result == i);
	CHECK(pthread_join(holder, NULL) == 0);
	CHECK(pthread_mutex_lock(&robust) == EOWNERDEAD && pthread_mutex_consistent(&robust) == 0);
	CHECK(pthread_rwlock_trywrlock(&rwlock) == 0);
	case_pass();
}
