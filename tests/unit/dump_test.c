/* Dumps a process with objects of many kinds, without a supervisor, and compares the image with what the
 * process created. */

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "proto/message.h"
#include "scip/dump/dump.h"
#include "scip/dump/page_writer.h"
#include "tests/tools/seize.h"
#include "tests/unit/unit.h"

enum { PAGE = 4096, PAGES = 32 };

/* The child's objects, in memory that the test shares with it. */
struct made {
	uint8_t *anon, *none, *deleted, *shared, *file, *altstack, *memfd;
	pid_t threads[2];
	pthread_barrier_t ready;
};
static struct made *made;
static char directory[64];

static void handler(int signal)
{
}

static void fill(uint8_t *p, unsigned seed)
{
	for (size_t i = 0; i < (size_t)PAGES * PAGE; i++)
		p[i] = (uint8_t)(i * 2654435761u >> 11 ^ seed);
}

static uint8_t *map(int prot, int flags, int fd)
{
	uint8_t *p = mmap(NULL, (size_t)PAGES * PAGE, prot, flags, fd, 0);

	if (p == MAP_FAILED)
		_exit(1);
	return p;
}

static int make_file(const char *name, unsigned seed)
{
	char path[128];
	int fd;
	uint8_t *p;

	snprintf(path, sizeof(path), "%s/%s", directory, name);
	fd = open(path, O_RDWR | O_CREAT, 0600);
	if (fd < 0 || ftruncate(fd, (off_t)PAGES * PAGE) < 0)
		_exit(1);
	p = map(PROT_READ | PROT_WRITE, MAP_SHARED, fd);
	fill(p, seed);
	munmap(p, (size_t)PAGES * PAGE);
	return fd;
}

static void make_memory(void)
{
	char path[128];
	int fd;

	made->anon = map(PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
	fill(made->anon, 1);
	madvise(made->anon + 8 * PAGE, PAGE, MADV_DONTNEED);
	made->none = map(PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
	fill(made->none, 2);
	mprotect(made->none, (size_t)PAGES * PAGE, PROT_NONE);
	made->shared = map(PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1);
	made->shared[5 * PAGE] = 5;
	fd = make_file("gone", 3);
	made->deleted = map(PROT_READ | PROT_WRITE, MAP_PRIVATE, fd);
	snprintf(path, sizeof(path), "%s/gone", directory);
	unlink(path);
	close(fd);
	fd = make_file("file", 4);
	made->file = map(PROT_READ | PROT_WRITE, MAP_PRIVATE, fd);
	made->file[3 * PAGE] ^= 1;
	close(fd);
	fd = memfd_create("memory", 0);
	if (ftruncate(fd, PAGE) < 0)
		_exit(1);
	made->memfd = map(PROT_READ | PROT_WRITE, MAP_SHARED, fd);
	close(fd);
}

static void make_signals(void)
{
	struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
	const struct itimerval itimer = {.it_value = {1000, 0}, .it_interval = {7, 0}};
	const struct itimerspec spec = {.it_value = {2000, 0}, .it_interval = {0, 500}};
	struct sigevent event = {
		.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1, .sigev_value = {.sival_int = 99}};
	stack_t altstack = {.ss_size = 65536};
	timer_t timer;
	sigset_t set;

	sigaction(SIGUSR1, &action, NULL);
	sigemptyset(&set);
	sigaddset(&set, SIGUSR2);
	sigaddset(&set, SIGRTMIN);
	sigprocmask(SIG_BLOCK, &set, NULL);
	sigqueue(getpid(), SIGRTMIN, (union sigval){.sival_int = 42});
	pthread_kill(pthread_self(), SIGUSR2);
	made->altstack = altstack.ss_sp = malloc(altstack.ss_size);
	sigaltstack(&altstack, NULL);
	setitimer(ITIMER_REAL, &itimer, NULL);
	timer_create(CLOCK_MONOTONIC, &event, &timer);
	timer_settime(timer, 0, &spec, NULL);
}

static void *thread(void *arg)
{
	prctl(PR_SET_NAME, "sleeper");
	*(pid_t *)arg = gettid();
	pthread_barrier_wait(&made->ready);
	for (;;)
		pause();
	return NULL;
}

static pid_t start(void)
{
	pthread_barrierattr_t attr;
	pid_t pid;

	made = mmap(NULL, sizeof(*made), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	pthread_barrierattr_init(&attr);
	pthread_barrierattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
	pthread_barrier_init(&made->ready, &attr, 4);
	pid = fork();
	if (pid == 0) {
		pthread_t t[2];

		prctl(PR_SET_PDEATHSIG, SIGKILL);
		prctl(PR_SET_NAME, "dumpee");
		umask(027);
		make_memory();
		make_signals();
		for (int i = 0; i < 2; i++)
			pthread_create(&t[i], NULL, thread, &made->threads[i]);
		pthread_barrier_wait(&made->ready);
		for (;;)
			pause();
	}
	pthread_barrier_wait(&made->ready);
	usleep(20000);
	return pid;
}

static Pbeam__Mapping *find(const Pbeam__Process *p, const uint8_t *address)
{
	for (size_t i = 0; i < p->memory->n_mappings; i++)
		if (p->memory->mappings[i]->start <= (uint64_t)address &&
		    (uint64_t)address < p->memory->mappings[i]->end)
			return p->memory->mappings[i];
	fail_msg("%p is in no mapping", (const void *)address);
	return NULL;
}

/* Copies the image's contents of the page at `address`; false if it has none. */
static bool content(int image, Pbeam__Pages *const *pages, size_t n, uint64_t address, uint8_t out[PAGE])
{
	for (size_t i = 0; i < n; i++) {
		if (pages[i]->address > address || address >= pages[i]->address + pages[i]->count * PAGE)
			continue;
		assert_int_equal(
			pread(image, out, PAGE, (off_t)(pages[i]->offset + (address - pages[i]->address))),
			PAGE);
		return true;
	}
	return false;
}

static void check_pages(int image, const Pbeam__Process *p, const uint8_t *address, unsigned seed,
			unsigned skip)
{
	const Pbeam__Mapping *m = find(p, address);
	uint8_t *expect = malloc((size_t)PAGES * PAGE), got[PAGE];

	fill(expect, seed);
	for (unsigned i = 0; i < PAGES; i++) {
		bool there = content(image, m->pages, m->n_pages, (uint64_t)address + i * PAGE, got);

		assert_int_equal(there, i != skip);
		if (there)
			assert_memory_equal(got, expect + i * PAGE, PAGE);
	}
	free(expect);
}

static void check_memory(int image, const Pbeam__Process *p)
{
	const Pbeam__Mapping *file = find(p, made->file);
	uint8_t got[PAGE];

	check_pages(image, p, made->anon, 1, 8);
	check_pages(image, p, made->none, 2, PAGES);
	check_pages(image, p, made->deleted, 3, PAGES);
	assert_true(find(p, made->deleted)->file->deleted);
	assert_int_equal(find(p, made->none)->prot, PROT_NONE);
	assert_int_equal(file->kind, PBEAM__MAPPING__KIND__FILE_PRIVATE);
	assert_false(file->file->deleted);
	assert_int_equal(file->n_pages, 1);
	assert_true(content(image, file->pages, 1, (uint64_t)made->file + 3 * PAGE, got));
	assert_int_equal(find(p, made->shared)->kind, PBEAM__MAPPING__KIND__SHARED_MEMORY);
	assert_int_equal(find(p, made->memfd)->kind, PBEAM__MAPPING__KIND__SHARED_MEMORY);
	assert_true(p->memory->brk >= p->memory->start_brk && p->memory->start_brk);
	assert_true(p->memory->auxv.len >= 256);
}

static void check_state(const Pbeam__Process *p)
{
	bool handled = false;

	assert_int_equal(p->umask, 027);
	assert_int_equal(p->n_threads, 3);
	assert_int_equal(p->threads[0]->comm.len, 6);
	assert_memory_equal(p->threads[0]->comm.data, "dumpee", 6);
	assert_memory_equal(p->threads[1]->comm.data, "sleeper", 7);
	assert_true(p->threads[1]->clear_child_tid && p->threads[1]->robust_head &&
		    p->threads[1]->rseq_address);
	assert_int_equal(p->threads[0]->altstack_sp, (uint64_t)made->altstack);
	assert_int_equal(p->threads[0]->altstack_size, 65536);
#ifndef __SANITIZE_ADDRESS__ /* gives every thread one */
	assert_int_equal(p->threads[1]->altstack_size, 0);
#endif
	assert_int_equal(p->threads[0]->pdeath_signal, SIGKILL);
	assert_true(p->threads[0]->sigmask & 1u << (SIGUSR2 - 1));
	assert_int_equal(p->n_pending, 1);
	assert_int_equal(((siginfo_t *)(void *)p->pending[0]->siginfo.data)->si_value.sival_int, 42);
	assert_int_equal(p->threads[0]->n_pending, 1);
	assert_int_equal(((siginfo_t *)(void *)p->threads[0]->pending[0]->siginfo.data)->si_signo, SIGUSR2);
	for (size_t i = 0; i < p->n_actions; i++)
		handled = handled ||
			  (p->actions[i]->signal == SIGUSR1 && p->actions[i]->handler == (uint64_t)handler);
	assert_true(handled);
	assert_int_equal(p->n_itimers, 1);
	assert_int_equal(p->itimers[0]->interval_us, 7000000);
	assert_int_equal(p->n_timers, 1);
	assert_int_equal(p->timers[0]->interval_ns, 500);
	assert_int_equal((int)p->timers[0]->sigev_value, 99);
	assert_in_range(p->timers[0]->value_ns, 1900000000000u, 2000000000000u);
	for (size_t i = 0; i < p->n_threads; i++)
		assert_int_equal(p->threads[i]->registers.len, sizeof(struct user_regs_struct));
}

/* The second query finds the shared anonymous page. */
static void check_shared(struct process *process, int image, struct image_arena *arena,
			 Pbeam__ScipDumped *dumped)
{
	Pbeam__ScipDumpShared request = PBEAM__SCIP_DUMP_SHARED__INIT;
	Pbeam__ScipDumpedShared *answer = message_new(&pbeam__scip_dumped_shared__descriptor);
	struct err err = ERR_INIT;
	uint8_t got[PAGE];

	for (size_t i = 0; i < dumped->n_shared; i++)
		if (dumped->shared[i]->start == (uint64_t)made->shared) {
			request.ranges = &dumped->shared[i];
			request.n_ranges = 1;
		}
	assert_int_equal(request.n_ranges, 1);
	if (dump_shared(process, image, arena, &request, answer, &err) < 0)
		fail_msg("%s", err.text);
	assert_int_equal(answer->n_ranges, 1);
	assert_true(content(image, answer->ranges[0]->pages, answer->ranges[0]->n_pages, 5 * PAGE, got));
	assert_int_equal(got[0], 5);
	assert_false(content(image, answer->ranges[0]->pages, answer->ranges[0]->n_pages, 6 * PAGE, got));
	message_free(answer);
}

static char *lines_of(pid_t pid, const char *what)
{
	char path[64], *text = calloc(1, 1 << 20);
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/%s", pid, what);
	fd = open(path, O_RDONLY);
	for (ssize_t n, at = 0; fd >= 0 && (n = read(fd, text + at, (1 << 20) - 1 - (size_t)at)) > 0;)
		at += n;
	close(fd);
	return text;
}

static void test_dump(void **state)
{
	pid_t pid = start();
	Pbeam__ScipDumped *dumped = message_new(&pbeam__scip_dumped__descriptor);
	struct err err = ERR_INIT;
	struct image_writer *writer;
	struct process process;
	struct names *names;
	char path[128], *before = lines_of(pid, "maps"), *after;

	snprintf(path, sizeof(path), "%s/image", directory);
	assert_int_equal(names_open(&names, &err), 0);
	assert_int_equal(seize_process(&process, pid, names, &err), 0);
	assert_int_equal(image_writer_open(&writer, path, 1024, &err), 0);
	if (dump_process(&process, PBEAM__SCIP_DUMP__WHAT__ALL, image_writer_fd(writer),
			 image_writer_arena(writer), dumped, &err) < 0)
		fail_msg("%s", err.text);
	check_memory(image_writer_fd(writer), dumped->process);
	check_state(dumped->process);
	check_shared(&process, image_writer_fd(writer), image_writer_arena(writer), dumped);
	after = lines_of(pid, "maps");
	assert_string_equal(before, after);
	release_process(&process);
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	image_writer_close(writer);
	names_close(names);
	message_free(dumped);
	free(before);
	free(after);
}

/* Pages that a migration has sent have no place in the file: the next pages in memory are not joined to
 * them, whatever their place is. */
static void test_append(void **state)
{
	Pbeam__Mapping *map = message_new(&pbeam__mapping__descriptor);

	assert_non_null(map);
	assert_int_equal(pages_append(&map->n_pages, &map->pages, 0x10000, 3, 0), 0);
	assert_int_equal(pages_append(&map->n_pages, &map->pages, 0x13000, 2, 3 * PAGE), 0);
	assert_int_equal(pages_append(&map->n_pages, &map->pages, 0x15000, 1, 5 * PAGE), 0);
	assert_int_equal(pages_append(&map->n_pages, &map->pages, 0x16000, 1, 7 * PAGE), 0);
	assert_int_equal(map->n_pages, 3);
	assert_int_equal(map->pages[0]->count, 3);
	assert_int_equal(map->pages[1]->count, 3);
	assert_int_equal(map->pages[1]->offset, 3 * PAGE);
	assert_int_equal(map->pages[2]->offset, 7 * PAGE);
	message_free(map);
}

static int set_up(void **state)
{
	strcpy(directory, "/tmp/pbeam-dump-XXXXXX");
	if (!mkdtemp(directory))
		return -1;
	return setenv("XDG_RUNTIME_DIR", directory, 1);
}

static int tear_down(void **state)
{
	char command[128];

	snprintf(command, sizeof(command), "rm -rf %s", directory);
	return system(command);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_dump), cmocka_unit_test(test_append)};

	alarm(60);
	return cmocka_run_group_tests(tests, set_up, tear_down);
}
