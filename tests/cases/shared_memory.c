/* memfd with seals, SysV segment (removed, attached twice), POSIX shared memory, a mapped file that is
 * deleted: contents and sharing. */
#include <fcntl.h>
#include <stdint.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/stat.h>

#include "tests/cases/case.h"

enum { SIZE = 1 << 20 };

static void fill(uint32_t *p, uint32_t seed)
{
	for (uint32_t i = 0; i < SIZE / 4; i++)
		p[i] = i * 2654435761u + seed;
}

static void check(const uint32_t *p, uint32_t seed)
{
	for (uint32_t i = 0; i < SIZE / 4; i++)
		CHECK(p[i] == i * 2654435761u + seed);
}

static uint32_t *map(int fd)
{
	uint32_t *p = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	CHECK(p != MAP_FAILED);
	return p;
}

/* Checks two mappings of one object: written through one, seen through the other. */
static void joined(uint32_t *a, uint32_t *b, uint32_t seed)
{
	check(a, seed);
	a[77] = 0xabcdef;
	CHECK(b[77] == 0xabcdef);
	b[77] = 77 * 2654435761u + seed;
	check(a, seed);
}

int main(void)
{
	char name[64];
	struct stat st;

	snprintf(name, sizeof(name), "/case-%d", (int)getpid());
	int memory = memfd_create("a case", MFD_ALLOW_SEALING),
	    posix = shm_open(name, O_RDWR | O_CREAT | O_EXCL, 0600);
	int file = open("mapped", O_RDWR | O_CREAT, 0600);
	CHECK(memory >= 0 && posix >= 0 && file >= 0);
	CHECK(ftruncate(memory, SIZE) == 0 && ftruncate(posix, SIZE) == 0 && ftruncate(file, SIZE) == 0);
	int segment = shmget(IPC_PRIVATE, SIZE, IPC_CREAT | 0600),
	    gone = shmget(IPC_PRIVATE, SIZE, IPC_CREAT | 0600);
	CHECK(segment >= 0 && gone >= 0);
	uint32_t *m1 = map(memory), *m2 = map(memory), *p1 = map(posix), *p2 = map(posix), *f1 = map(file),
		 *f2 = map(file);
	uint32_t *s1 = shmat(segment, NULL, 0), *s2 = shmat(segment, NULL, 0), *g = shmat(gone, NULL, 0);
	CHECK(s1 != (void *)-1 && s2 != (void *)-1 && g != (void *)-1);
	CHECK(fcntl(memory, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
	CHECK(shmctl(gone, IPC_RMID, NULL) == 0 && unlink("mapped") == 0 && close(posix) == 0);
	fill(m1, 1);
	fill(p1, 2);
	fill(f1, 3);
	fill(s1, 4);
	fill(g, 5);

	case_wait();
	joined(m1, m2, 1);
	joined(p1, p2, 2);
	joined(f1, f2, 3);
	joined(s1, s2, 4);
	check(g, 5);
	CHECK(fcntl(memory, F_GET_SEALS) == F_SEAL_SHRINK && ftruncate(memory, 4096) == -1);
	CHECK(fstat(file, &st) == 0 && st.st_nlink == 0 && st.st_size == SIZE);
	posix = shm_open(name, O_RDWR, 0600);
	CHECK(posix >= 0);
	joined(p1, map(posix), 2);
	s1[5] = 1;
	uint32_t *s3 = shmat(segment, NULL, 0);
	CHECK(s3 != (void *)-1 && s3[5] == 1);
	CHECK(shmctl(segment, IPC_RMID, NULL) == 0 && shm_unlink(name) == 0);
	case_pass();
}
