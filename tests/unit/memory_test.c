/* Memory of the machine and of control groups, from their files. */
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/err.h"
#include "base/host_memory.h"
#include "base/io.h"
#include "tests/unit/unit.h"

static char top[] = "/tmp/memory.XXXXXX";

/* "GROUP/FILE" below the directory of the test. */
static void write_file(const char *name, const char *text)
{
	struct err err = ERR_INIT;
	char path[PATH_MAX];
	auto_close int fd = -1;

	snprintf(path, sizeof(path), "%s/%s", top, name);
	*strrchr(path, '/') = '\0';
	assert_int_equal(io_mkdirs(path, &err), 0);
	path[strlen(path)] = '/';
	fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	assert_true(fd >= 0);
	assert_int_equal(io_write_full(fd, text, strlen(text)), 0);
}

static void write_mounts(const char *root)
{
	char text[2 * PATH_MAX];

	snprintf(text, sizeof(text),
		 "22 1 0:20 / / rw shared:1 - ext4 /dev/sda rw\n"
		 "30 23 0:27 / %s/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
		 "31 23 0:28 %s %s/v1 rw,relatime shared:5 - cgroup cgroup rw,memory\n"
		 "32 23 0:29 / %s/v2 rw,relatime - cgroup2 cgroup2 rw\n",
		 top, root, top, top);
	write_file("self/mountinfo", text);
}

static void expect(uint64_t total, uint64_t available)
{
	struct host_memory size;

	host_memory_size(top, &size);
	assert_int_equal(size.total, total);
	assert_int_equal(size.available, available);
}

static int set_up(void **state)
{
	strcpy(top, "/tmp/memory.XXXXXX");
	if (!mkdtemp(top))
		return -1;
	write_file("meminfo", "MemTotal:        1000 kB\nMemFree:  1 kB\nMemAvailable:     800 kB\n");
	write_mounts("/");
	return 0;
}

static int tear_down(void **state)
{
	char command[PATH_MAX];

	snprintf(command, sizeof(command), "rm -r %s", top);
	return system(command);
}

static void test_machine(void **state)
{
	expect(1024000, 819200);
	write_file("self/cgroup", "4:memory:/job\n0::/job\n"); /* which sets no limit */
	expect(1024000, 819200);
	write_file("v2/job/memory.max", "max\n");
	write_file("v2/job/memory.current", "5000\n");
	expect(1024000, 819200);
}

static void test_unified(void **state)
{
	write_file("self/cgroup", "0::/user/job\n");
	write_file("v2/user/job/memory.max", "max\n");
	write_file("v2/user/job/memory.current", "1000\n");
	write_file("v2/user/memory.max", "500000\n");
	write_file("v2/user/memory.current", "300000\n");
	expect(500000, 200000);
	write_file("v2/user/memory.stat", "anon 1\nfile 9\ninactive_file 1000\nactive_file 2000\n");
	expect(500000, 203000);
	write_file("v2/user/job/memory.max", "1000\n");
	expect(1000, 0);
}

static void test_legacy(void **state)
{
	write_file("self/cgroup", "5:cpu,cpuacct:/\n4:memory:/slurm/job\n0::/\n");
	write_file("v1/slurm/job/memory.limit_in_bytes", "400000\n");
	write_file("v1/slurm/job/memory.usage_in_bytes", "100000\n");
	write_file("v1/slurm/memory.limit_in_bytes", "9223372036854771712\n");
	write_file("v1/slurm/memory.usage_in_bytes", "100000\n");
	expect(400000, 300000);
	write_file("v1/slurm/job/memory.stat", "cache 1\ninactive_file 7\ntotal_inactive_file 5000\n");
	expect(400000, 305000);
}

/* As in a container: the mount has a part of the hierarchy, or none of our groups. */
static void test_part_of_the_tree(void **state)
{
	write_mounts("/docker/abc");
	write_file("self/cgroup", "4:memory:/docker/abc/job\n");
	write_file("v1/job/memory.limit_in_bytes", "400000\n");
	write_file("v1/job/memory.usage_in_bytes", "100000\n");
	expect(400000, 300000);
	write_file("self/cgroup", "4:memory:/../other\n");
	write_file("v1/memory.limit_in_bytes", "300000\n");
	write_file("v1/memory.usage_in_bytes", "100000\n");
	expect(300000, 200000);
}

/* None of the texts need be complete. */
static void test_malformed(void **state)
{
	static const char *const TEXTS[] = {
		"", "\n", ":", "4:", "4:memory", "4:memory:", "::::\n::", "0::/\n0::", "4:memory:relative\n"};

	for (size_t i = 0; i < sizeof(TEXTS) / sizeof(TEXTS[0]); i++) {
		write_file("self/cgroup", TEXTS[i]);
		expect(1024000, 819200);
	}
	write_file("self/cgroup", "4:memory:/\n");
	for (size_t i = 0; i < sizeof(TEXTS) / sizeof(TEXTS[0]); i++) {
		write_file("self/mountinfo", TEXTS[i]);
		expect(1024000, 819200);
	}
	write_file("meminfo", "");
	expect(UINT64_MAX, UINT64_MAX);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_machine, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_unified, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_legacy, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_part_of_the_tree, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_malformed, set_up, tear_down),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
