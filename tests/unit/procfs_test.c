/* The parsers of /proc texts: on the kernel's texts, and on texts that a hostile program can produce. */
#include <fcntl.h>

#include "tests/unit/tracee_help.h"

static int parse(const char *text, struct procfs_maps *maps)
{
	struct err err = ERR_INIT;

	return procfs_maps_parse(text, strlen(text), maps, &err);
}

static void test_line(void **state)
{
	struct procfs_maps maps;

	assert_int_equal(parse("7f00-8f00 rw-s 00001000 fe:1a 247741      /a b/c\\012d (deleted)\n", &maps),
			 0);
	assert_int_equal(maps.n, 1);
	assert_int_equal(maps.v[0].start, 0x7f00);
	assert_int_equal(maps.v[0].end, 0x8f00);
	assert_int_equal(maps.v[0].offset, 0x1000);
	assert_int_equal(maps.v[0].dev_major, 0xfe);
	assert_int_equal(maps.v[0].dev_minor, 0x1a);
	assert_int_equal(maps.v[0].ino, 247741);
	assert_int_equal(maps.v[0].prot, PROT_READ | PROT_WRITE);
	assert_true(maps.v[0].shared && maps.v[0].deleted);
	assert_string_equal(maps.v[0].name, "/a b/c\nd");
	procfs_maps_free(&maps);
}

static void test_smaps(void **state)
{
	static const char text[] = "1000-3000 r--p 00000000 00:00 0    [anon:x]\n"
				   "KernelPageSize:        4 kB\nShared_Clean:   8 kB\nShared_Dirty:  4 kB\n"
				   "Anonymous:   12 kB\nSwap:   4 kB\nLocked:   8 kB\nProtectionKey:  3\n"
				   "VmFlags: rd mr mw gd \n"
				   "4000-5000 ---p 00000000 00:00 0\nLocked:  0 kB\n";
	struct procfs_maps maps;

	assert_int_equal(parse(text, &maps), 0);
	assert_int_equal(maps.n, 2);
	assert_int_equal(maps.v[0].locked_bytes, 8192);
	assert_int_equal(maps.v[0].shared_bytes, 12288);
	assert_int_equal(maps.v[0].anonymous_bytes, 12288);
	assert_int_equal(maps.v[0].swap_bytes, 4096);
	assert_int_equal(maps.v[0].page_bytes, 4096);
	assert_int_equal(maps.v[0].pkey, 3);
	assert_non_null(strstr(maps.v[0].vm_flags, "gd"));
	assert_string_equal(maps.v[0].name, "[anon:x]");
	assert_int_equal(maps.v[1].prot, 0);
	assert_string_equal(maps.v[1].name, "");
	procfs_maps_free(&maps);
}

static void test_refused(void **state)
{
	static const char *const bad[] = {
		"3000-1000 r--p 00000000 00:00 0\n",
		"1000-2000\n",
		"1000-2000 r--p\n",
		"1000-2000 r--p 0 0\n",
		"fffffffffffffffff-2000 r--p 00000000 00:00 0\n",
		"2000-3000 r--p 00000000 00:00 0\n1000-2000 r--p 00000000 00:00 0\n",
		"\n",
		"1000 2000 r--p 00000000 00:00 0\n",
	};
	struct procfs_maps maps;

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		assert_int_equal(parse(bad[i], &maps), -EINVAL);
		assert_null(maps.v);
	}
	assert_int_equal(parse("", &maps), 0);
	procfs_maps_free(&maps);
}

static void test_own_maps(void **state)
{
	struct procfs_maps maps;
	bool stack = false;
	char path[64];
	void *at;
	int fd;

	snprintf(path, sizeof(path), "/tmp/pbeam procfs\n%d", getpid());
	fd = open(path, O_RDWR | O_CREAT, 0600);
	assert_true(fd >= 0 && ftruncate(fd, 4096) == 0);
	at = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);
	unlink(path);
	for (int smaps = 0; smaps < 2; smaps++) {
		bool found = false;

		assert_ok(procfs_maps_read(getpid(), smaps, &maps, err));
		for (size_t i = 0; i < maps.n; i++) {
			stack |= !strcmp(maps.v[i].name, "[stack]");
			if (maps.v[i].start == (uint64_t)(uintptr_t)at)
				found = !strcmp(maps.v[i].name, path) && maps.v[i].deleted;
		}
		assert_true(found && stack);
		procfs_maps_free(&maps);
	}
	munmap(at, 4096);
	close(fd);
}

static void rename_and_wait(void *arg)
{
	prctl(PR_SET_NAME, "a) R 1 (b\nc");
	*(volatile int *)arg = 1;
	for (;;)
		pause();
}

static void test_hostile_comm(void **state)
{
	volatile int *ready = help_shared(4096);
	struct procfs_stat stat;
	struct procfs_maps maps;
	pid_t *children;
	bool found = false;
	pid_t pid = help_fork(rename_and_wait, (void *)(uintptr_t)ready);
	int n, status;

	while (!*ready)
		usleep(100);
	help_wait_asleep(pid);
	assert_ok(procfs_stat_read(pid, 0, &stat, err));
	assert_string_equal(stat.comm, "a) R 1 (b\nc");
	assert_int_equal(stat.state, 'S');
	assert_int_equal(stat.ppid, getpid());
	assert_int_equal(stat.num_threads, 1);
	assert_int_equal(stat.exit_signal, SIGCHLD);
	kill(pid, SIGKILL);
	waitid(P_PID, (id_t)pid, NULL, WEXITED | WNOWAIT);
	n = procfs_children(getpid(), &children, NULL);
	assert_true(n > 0);
	for (int i = 0; i < n; i++)
		found |= children[i] == pid;
	assert_true(found);
	free(children);
	assert_ok(procfs_stat_read(pid, 0, &stat, err));
	assert_int_equal(stat.state, 'Z');
	assert_int_equal(procfs_maps_read(pid, false, &maps, NULL), -ESRCH);
	waitpid(pid, &status, 0);
	assert_int_equal(procfs_stat_read(pid, 0, &stat, NULL), -ENOENT);
}

static void test_field(void **state)
{
	static const char text[] = "Name:\tx\nSigPnd:\t0000\nSig:\tyes\n";

	assert_memory_equal(procfs_field(text, "Sig"), "yes\n", 4);
	assert_memory_equal(procfs_field(text, "Name"), "x\n", 2);
	assert_null(procfs_field(text, "Nam"));
	assert_null(procfs_field("", "Name"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_line),	     cmocka_unit_test(test_smaps),
		cmocka_unit_test(test_refused),	     cmocka_unit_test(test_own_maps),
		cmocka_unit_test(test_hostile_comm), cmocka_unit_test(test_field),
	};

	alarm(30);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
