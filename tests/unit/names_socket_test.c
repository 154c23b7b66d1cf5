/* Names of sockets in the name table: stored by inode, replaced, removed. The oldest is dropped when all
 * places are taken. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "namespace/names.h"
#include "tests/unit/unit.h"

static struct names *names;

static int setup(void **state)
{
	static char dir[] = "/tmp/pbeam-sockets-XXXXXX";
	struct err err = ERR_INIT;

	*state = mkdtemp(dir);
	setenv("XDG_RUNTIME_DIR", dir, 1);
	return *state && names_open(&names, &err) == 0 ? 0 : -1;
}

static int teardown(void **state)
{
	char command[128];

	names_close(names);
	snprintf(command, sizeof(command), "rm -rf %s", (const char *)*state);
	return system(command);
}

static struct name_socket name_of(uint16_t port)
{
	return (struct name_socket){.own.in = {.sin_family = AF_INET, .sin_port = port},
				    .peer.in = {.sin_family = AF_INET, .sin_port = (uint16_t)(port + 1)}};
}

static void test_by_inode(void **state)
{
	struct name_socket one = name_of(5), other = name_of(9), found;

	assert_false(names_socket_any(names));
	assert_int_equal(names_socket_get(names, 77, &found), -ENOENT);
	assert_int_equal(names_socket_set(names, 0, &one), -EINVAL);
	assert_int_equal(names_socket_set(names, 77, &one), 0);
	assert_int_equal(names_socket_set(names, 78, &other), 0);
	assert_true(names_socket_any(names));
	assert_int_equal(names_socket_get(names, 77, &found), 0);
	assert_int_equal(found.own.in.sin_port, 5);
	assert_int_equal(found.peer.in.sin_port, 6);
	assert_int_equal(names_socket_set(names, 77, &other), 0);
	assert_int_equal(names_socket_get(names, 77, &found), 0);
	assert_int_equal(found.own.in.sin_port, 9);
	names_socket_forget(names, 77);
	assert_int_equal(names_socket_get(names, 77, &found), -ENOENT);
	assert_int_equal(names_socket_get(names, 78, &found), 0);
}

static void test_full(void **state)
{
	struct name_socket one = name_of(5), found;

	for (uint64_t ino = 1000; ino < 1000 + 9000; ino++)
		assert_int_equal(names_socket_set(names, ino, &one), 0);
	assert_int_equal(names_socket_get(names, 1000, &found), -ENOENT);
	assert_int_equal(names_socket_get(names, 9999, &found), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_by_inode), cmocka_unit_test(test_full)};

	return cmocka_run_group_tests(tests, setup, teardown);
}
