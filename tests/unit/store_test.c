/* Numbers of checkpoints: never used again, the newest kept, another job with the same vpid kept apart. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "image/store.h"
#include "tests/unit/unit.h"

static char top[] = "/tmp/store-test-XXXXXX";

static int set_up(void **state)
{
	assert_non_null(mkdtemp(top));
	setenv("XDG_STATE_HOME", top, 1);
	return 0;
}

static int tear_down(void **state)
{
	char command[64];

	snprintf(command, sizeof(command), "rm -rf %s", top);
	return system(command);
}

static uint32_t make(const char *job, const char *uuid)
{
	struct err err = ERR_INIT;
	char path[PATH_MAX];
	uint32_t number = 0;
	int fd;

	assert_int_equal(store_claim(job, uuid, path, &number, &err), 0);
	fd = open(path, O_CREAT | O_EXCL | O_WRONLY, 0600);
	assert_true(fd >= 0);
	close(fd);
	return number;
}

static void test_numbers(void **state)
{
	struct err err = ERR_INIT;
	uint32_t *numbers, number;
	char path[PATH_MAX];

	assert_int_equal(store_list("web", &numbers, &err), 0);
	assert_int_equal(store_find("web", 0, path, &err), -ENOENT);
	assert_int_equal(make("web", "u1"), 1);
	assert_int_equal(make("web", "u1"), 2);
	assert_int_equal(store_claim("web", "u1", path, &number, &err), 0);
	assert_int_equal(number, 3); /* claimed, and then the checkpoint failed */
	assert_int_equal(make("web", "u2"), 4);
	assert_int_equal(store_find("web", 0, path, &err), 0);
	assert_non_null(strstr(path, "/web/4.ckpt"));
	assert_int_equal(store_find("web", 3, path, &err), -ENOENT);
	store_prune("web", 2);
	assert_int_equal(store_list("web", &numbers, &err), 2);
	assert_int_equal(numbers[0], 2);
	assert_int_equal(numbers[1], 4);
	free(numbers);
	assert_int_equal(store_find("web", 4, path, &err), 0);
	unlink(path);
	assert_int_equal(make("web", "u2"), 5);
}

static void test_same_vpid(void **state)
{
	struct err err = ERR_INIT;
	char path[PATH_MAX];

	assert_int_equal(make("4711", "first"), 1);
	assert_int_equal(make("4711", "first"), 2);
	assert_int_equal(make("4711", "second"), 1);
	assert_int_equal(store_find("4711", 2, path, &err), -ENOENT);
	assert_int_equal(make("4711", "first"), 3);
	assert_int_equal(store_find("4711", 1, path, &err), 0);
}

static void test_place(void **state)
{
	struct err err = ERR_INIT;
	char dir[PATH_MAX], path[PATH_MAX + 32];

	snprintf(dir, sizeof(dir), "%s/elsewhere", top);
	assert_int_equal(make("placed", "u1"), 1);
	assert_int_equal(store_place("placed", dir, &err), 0);
	assert_int_equal(make("placed", "u2"), 1);
	assert_int_equal(store_place("placed", dir, &err), 0);
	assert_int_equal(make("placed", "u2"), 2);
	snprintf(path, sizeof(path), "%s/placed/2.ckpt", dir);
	assert_int_equal(access(path, F_OK), 0);
	snprintf(path, sizeof(path), "%s/pbeam/placed.u1/1.ckpt", top);
	assert_int_equal(access(path, F_OK), 0);
}

static void test_leftovers(void **state)
{
	struct err err = ERR_INIT;
	char path[PATH_MAX], dead[PATH_MAX + 32], alive[PATH_MAX + 32];
	uint32_t number;
	pid_t child = fork();

	if (child == 0)
		_exit(0);
	waitpid(child, NULL, 0);
	assert_int_equal(store_claim("swept", "u", path, &number, &err), 0);
	snprintf(dead, sizeof(dead), "%s.tmp-%d", path, (int)child);
	snprintf(alive, sizeof(alive), "%s.tmp-%d", path, (int)getpid());
	close(open(dead, O_CREAT | O_WRONLY, 0600));
	close(open(alive, O_CREAT | O_WRONLY, 0600));
	assert_int_equal(store_claim("swept", "u", path, &number, &err), 0);
	assert_int_equal(access(dead, F_OK), -1);
	assert_int_equal(access(alive, F_OK), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_numbers),
		cmocka_unit_test(test_same_vpid),
		cmocka_unit_test(test_place),
		cmocka_unit_test(test_leftovers),
	};

	return cmocka_run_group_tests(tests, set_up, tear_down);
}
