/* 200 threads on condition variables: a token goes round; each thread counts its turns in its own TLS and in
 * a shared table. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { THREADS = 200 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t turn[THREADS];
static unsigned long holder;
static unsigned long turns[THREADS];
static int stop;
static __thread unsigned long own;

static void *run(void *arg)
{
	unsigned long me = (unsigned long)arg;

	pthread_mutex_lock(&lock);
	while (1) {
		while (holder % THREADS != me && !stop)
			pthread_cond_wait(&turn[me], &lock);
		if (stop)
			break;
		own++;
		turns[me]++;
		holder++;
		pthread_cond_signal(&turn[holder % THREADS]);
	}
	pthread_mutex_unlock(&lock);
	return (void *)own;
}

int main(void)
{
	pthread_t thread[THREADS];
	unsigned long total = 0, shown = 0;

	for (unsigned long i = 0; i < THREADS; i++)
		pthread_cond_init(&turn[i], NULL);
	for (unsigned long i = 0; i < THREADS; i++)
		if (pthread_create(&thread[i], NULL, run, (void *)i) != 0)
			return 2;
	while (access("go", F_OK) != 0) {
		usleep(10000);
		pthread_mutex_lock(&lock);
		unsigned long now = holder;
		pthread_mutex_unlock(&lock);
		if (now == shown) {
			continue;
		}
		shown = now;
		printf("tick %lu\n", now);
		fflush(stdout);
	}
	pthread_mutex_lock(&lock);
	stop = 1;
	for (unsigned long i = 0; i < THREADS; i++)
		pthread_cond_broadcast(&turn[i]);
	pthread_mutex_unlock(&lock);
	for (unsigned long i = 0; i < THREADS; i++) {
		void *result;
		if (pthread_join(thread[i], &result) != 0 || (unsigned long)result != turns[i]) {
			printf("result wrong: thread %lu: %lu turns, %lu in its own memory\n", i, turns[i],
			       (unsigned long)result);
			return 1;
		}
		total += turns[i];
	}
	printf(total == holder ? "result ok\n" : "result wrong: lost turns\n");
	return total != holder;
}
