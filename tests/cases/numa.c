/* NUMA policies of threads and of mappings. Makes the system calls directly: libnuma is not required. */
#include <linux/mempolicy.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include "tests/cases/case.h"

enum { PAGE = 4096, NODES = 1025 };

static pthread_barrier_t barrier;

static int policy_at(const void *address, unsigned long *first)
{
	unsigned long nodes[NODES / 64 + 1] = {0};
	int mode = -1;

	CHECK(syscall(SYS_get_mempolicy, &mode, nodes, (unsigned long)NODES, address,
		      address ? MPOL_F_ADDR : 0) == 0);
	*first = nodes[0];
	return mode;
}

static void *thread(void *arg)
{
	unsigned long node[NODES / 64 + 1] = {1}, first;

	(void)arg;
	CHECK(syscall(SYS_set_mempolicy, MPOL_INTERLEAVE, node, (unsigned long)NODES) == 0);
	pthread_barrier_wait(&barrier);
	pthread_barrier_wait(&barrier);
	CHECK(policy_at(NULL, &first) == MPOL_INTERLEAVE && first == 1);
	return NULL;
}

int main(void)
{
	unsigned long node = 1, nodes[NODES / 64 + 1] = {1}, first;
	char *map = mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	pthread_t other;

	CHECK(map != MAP_FAILED);
	if (syscall(SYS_set_mempolicy, MPOL_PREFERRED, nodes, (unsigned long)NODES) < 0)
		case_skip("a kernel with NUMA");
	CHECK(syscall(SYS_mbind, map + PAGE, PAGE, MPOL_BIND, nodes, (unsigned long)NODES, 0) == 0);
	map[0] = map[PAGE] = map[2 * PAGE] = 7;
	CHECK(pthread_barrier_init(&barrier, NULL, 2) == 0 &&
	      pthread_create(&other, NULL, thread, NULL) == 0);
	pthread_barrier_wait(&barrier);

	case_wait();
	CHECK(policy_at(NULL, &first) == MPOL_PREFERRED && first == node);
	CHECK(policy_at(map + PAGE, &first) == MPOL_BIND && first == node);
	CHECK(policy_at(map, &first) == MPOL_DEFAULT && policy_at(map + 2 * PAGE, &first) == MPOL_DEFAULT);
	CHECK(map[0] == 7 && map[PAGE] == 7 && map[2 * PAGE] == 7);
	pthread_barrier_wait(&barrier);
	CHECK(pthread_join(other, NULL) == 0);
	case_pass();
}
