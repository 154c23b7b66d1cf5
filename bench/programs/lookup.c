/*
 * lookup PID: the cost of finding a process by its number. kill(PID, 0), the median of batches, as "lookup
 * NS".
 */
#include <err.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { BATCHES = 21, FEW = 20, MANY = 2000, QUICK_NS = 20000 };

static uint64_t now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

/* Returns the ns of one call, averaged over `n` calls. */
static double batch(pid_t pid, int n)
{
	uint64_t start = now();

	for (int i = 0; i < n; i++)
		if (kill(pid, 0) < 0)
			err(1, "kill %d", pid);
	return (double)(now() - start) / n;
}

static int ascending(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
	double figures[BATCHES];
	pid_t pid = argc > 1 ? atoi(argv[1]) : 0;
	int n;

	if (pid <= 0)
		errx(2, "usage: lookup PID");
	n = batch(pid, FEW) < QUICK_NS ? MANY : FEW;
	for (int i = 0; i < BATCHES; i++)
		figures[i] = batch(pid, n);
	qsort(figures, BATCHES, sizeof(figures[0]), ascending);
	printf("lookup %.0f\n", figures[BATCHES / 2]);
	return 0;
}
