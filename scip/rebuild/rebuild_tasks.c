/*
 * Whether as many processes and threads as an image needs may be made now. The limits (RLIMIT_NPROC, pids.max
 * of each cgroup above, kernel.threads-max) count more than can be read in a pid namespace. So they are tried
 * out, by threads, which count as processes do and end with the coordinator.
 */
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "scip/rebuild/rebuild_parts.h"

static void *wait_for_end(void *gate)
{
	pthread_mutex_lock(gate);
	pthread_mutex_unlock(gate);
	return NULL;
}

/* Returns how many of `need` could be made. */
static size_t try_tasks(size_t need)
{
	auto_free pthread_t *made = calloc(need + 1, sizeof(*made));
	pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
	pthread_attr_t attr;
	size_t n = 0;

	if (!made || pthread_attr_init(&attr) != 0)
		return need;
	pthread_attr_setstacksize(&attr, (size_t)PTHREAD_STACK_MIN); /* else they have the usual size */
	pthread_mutex_lock(&gate);
	while (n < need && pthread_create(&made[n], &attr, wait_for_end, &gate) == 0)
		n++;
	pthread_mutex_unlock(&gate);
	for (size_t i = 0; i < n; i++)
		pthread_join(made[i], NULL);
	pthread_attr_destroy(&attr);
	return n;
}

int rebuild_check_tasks(struct rebuild *rebuild)
{
	const Pbeam__Manifest *manifest = rebuild->manifest;
	size_t need = 0, can;

	for (size_t i = 0; i < manifest->n_processes; i++)
		need += 1 + manifest->processes[i]->n_threads; /* with a scip */
	can = try_tasks(need);
	if (can == need)
		return 0;
	return err_set(
		rebuild->err, -EAGAIN,
		"%zu processes and threads are needed and %zu can be made now; end others, or raise the "
		"limit (ulimit -u, or pids.max of the control group)%s",
		need, can,
		rebuild->beside ? ", or use --replace, which ends the present processes first" : "");
}
