/* The name table in a cluster: blocks of numbers, places of processes, addresses that have moved. */

#include <arpa/inet.h>
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>

#include "namespace/table.h"
#include "tests/unit/names_help.h"

static const struct rpid keeper = {1};

static void alone_holds_all(void **state)
{
	struct names *names = *state;
	char host[NAME_TEXT_MAX];
	struct vpid vpid;

	assert_false(names_cluster(names, host));
	assert_int_equal(names_number_born(names, (struct rpid){5000}, keeper, &vpid), 0);
	assert_int_equal(vpid.n, 5000);
	assert_int_equal(names_block_find(names, vpid, host), -ENOENT);
	assert_int_equal(names_place_find(names, vpid, host), -ENOENT);
}

static void numbers_of_other_hosts(void **state)
{
	struct names *names = *state;
	char host[NAME_TEXT_MAX];
	uint32_t used, held;
	struct vpid vpid;

	assert_int_equal(names_cluster_set(names, "a"), 0);
	names_cluster_begin(names);
	assert_true(names_cluster(names, host));
	assert_string_equal(host, "a");
	assert_int_equal(names_block_set(names, 4, "a"), 0);
	assert_int_equal(names_block_set(names, 5, "b"), 0);
	assert_int_equal(names_block_set(names, 5000, "a"), 0);
	assert_int_equal(names_number_born(names, (struct rpid){4096}, keeper, &vpid), 0);
	assert_int_equal(vpid.n, 4096);
	/* in another host's block, and in no host's */
	assert_int_equal(names_number_born(names, (struct rpid){5120}, keeper, &vpid), 0);
	assert_int_equal(vpid.n >> NAMES_BLOCK_BITS, 5000);
	assert_int_equal(names_real(names, vpid).n, 5120);
	assert_int_equal(names_virtual(names, (struct rpid){5120}).n, vpid.n);
	assert_int_equal(names_number_born(names, (struct rpid){9000}, keeper, &vpid), 0);
	assert_int_equal(vpid.n >> NAMES_BLOCK_BITS, 5000);
	names_block_usage(names, &used, &held);
	assert_int_equal(used, 2);
	assert_int_equal(held, 1024);
	assert_int_equal(names_place_find(names, (struct vpid){5121}, host), 0);
	assert_string_equal(host, "b");
	assert_int_equal(names_place_find(names, (struct vpid){-5121}, host), 0);
	assert_int_equal(names_place_find(names, (struct vpid){4097}, host), -ENOENT);
	assert_int_equal(names_place_find(names, (struct vpid){9001}, host), -ENOENT);
	/* the same host again: nothing is lost */
	assert_int_equal(names_cluster_set(names, "a"), 0);
	names_cluster_begin(names);
	assert_int_equal(names_block_find(names, (struct vpid){5121}, host), 0);
	assert_int_equal(names_cluster_set(names, NULL), 0);
	assert_int_equal(names_block_find(names, (struct vpid){5121}, host), -ENOENT);
}

static void all_of_a_block(void **state)
{
	struct names *names = *state;
	struct vpid vpid;

	assert_int_equal(names_cluster_set(names, "a"), 0);
	names_cluster_begin(names);
	assert_int_equal(names_block_set(names, 8191, "a"), 0);
	for (int i = 0; i < 1024; i++)
		assert_int_equal(names_number_born(names, (struct rpid){20000 + i}, keeper, &vpid), 0);
	assert_int_equal(names_number_born(names, (struct rpid){30000}, keeper, &vpid), -ENOSPC);
	assert_int_equal(names_block_set(names, 4097, "a"), 0);
	assert_int_equal(names_number_born(names, (struct rpid){30000}, keeper, &vpid), 0);
	assert_int_equal(vpid.n >> NAMES_BLOCK_BITS, 4097);
}

static void who_has_left(void **state)
{
	struct names *names = *state;
	char host[NAME_TEXT_MAX];
	struct vpid vpid;

	assert_int_equal(names_cluster_set(names, "a"), 0);
	names_cluster_begin(names);
	assert_int_equal(names_block_set(names, 4, "a"), 0);
	assert_int_equal(names_block_set(names, 4098, "a"), 0);
	assert_int_equal(names_place_set(names, (struct vpid){4100}, "b"), 0);
	assert_int_equal(names_place_find(names, (struct vpid){4100}, host), 0);
	assert_string_equal(host, "b");
	/* its number is not used again */
	assert_int_equal(names_number_born(names, (struct rpid){4100}, keeper, &vpid), 0);
	assert_int_not_equal(vpid.n, 4100);
	/* a process that has arrived here */
	assert_int_equal(names_place_set(names, (struct vpid){99999}, "a"), 0);
	assert_int_equal(names_place_find(names, (struct vpid){99999}, host), -ENOENT);
	names_place_remove(names, (struct vpid){4100});
	assert_int_equal(names_place_find(names, (struct vpid){4100}, host), -ENOENT);
	for (int i = 1; i <= 16383; i++)
		assert_int_equal(names_place_set(names, (struct vpid){100000 + i}, "b"), 0);
	assert_int_equal(names_place_set(names, (struct vpid){200000}, "b"), -ENOSPC);
	for (int i = 1; i <= 16383; i++)
		names_place_remove(names, (struct vpid){100000 + i});
	assert_int_equal(names_place_set(names, (struct vpid){200000}, "b"), 0);
}

static struct name_address address(int n)
{
	struct name_address a = {.protocol = IPPROTO_TCP, .host = "b", .vpid = {n}};

	a.name.in.sin_family = a.real.in.sin_family = AF_INET;
	a.name.in.sin_port = a.real.in.sin_port = htons((uint16_t)n);
	a.name.in.sin_addr.s_addr = inet_addr("10.77.0.1");
	a.real.in.sin_addr.s_addr = inet_addr("10.77.0.2");
	return a;
}

static void addresses(void **state)
{
	struct names *names = *state;
	struct name_address a = address(80), found;
	struct sockaddr_in6 mapped = {.sin6_family = AF_INET6, .sin6_port = htons(80)};

	assert_int_equal(names_cluster_set(names, "a"), 0);
	names_cluster_begin(names);
	assert_int_equal(names_address_find(names, IPPROTO_TCP, &a.name.sa, NULL, &found), -ENOENT);
	for (int i = 1; i <= 3000; i++) {
		struct name_address one = address(i);

		assert_int_equal(names_address_set(names, &one, NULL, 0), 0);
	}
	assert_int_equal(names_address_find(names, IPPROTO_TCP, &a.name.sa, NULL, &found), 0);
	assert_string_equal(found.host, "b");
	assert_int_equal(found.vpid.n, 80);
	assert_memory_equal(&found.real.in, &a.real.in, sizeof(a.real.in));
	assert_int_equal(names_address_find_real(names, IPPROTO_TCP, &a.real.sa, &found), 0);
	assert_memory_equal(&found.name.in, &a.name.in, sizeof(a.name.in));
	assert_int_equal(names_address_find(names, IPPROTO_UDP, &a.name.sa, NULL, &found), -ENOENT);
	assert_int_equal(inet_pton(AF_INET6, "::ffff:10.77.0.1", &mapped.sin6_addr), 1);
	assert_int_equal(names_address_find(names, IPPROTO_TCP, (struct sockaddr *)&mapped, NULL, &found), 0);
	a.real.in.sin_addr.s_addr = inet_addr("10.77.0.3");
	assert_int_equal(names_address_set(names, &a, NULL, 0), 0);
	assert_int_equal(names_address_find(names, IPPROTO_TCP, &a.name.sa, NULL, &found), 0);
	assert_int_equal(found.real.in.sin_addr.s_addr, inet_addr("10.77.0.3"));
	names_address_remove(names, &a);
	assert_int_equal(names_address_find(names, IPPROTO_TCP, &a.name.sa, NULL, &found), -ENOENT);
	assert_int_equal(names_address_find_real(names, IPPROTO_TCP, &a.real.sa, &found), -ENOENT);
	names_address_clear(names, true);
	a = address(81);
	assert_int_equal(names_address_find(names, IPPROTO_TCP, &a.name.sa, NULL, &found), -ENOENT);
}

static union name_sockaddr at(const char *text, int port)
{
	union name_sockaddr a = {.in = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)}};

	a.in.sin_addr.s_addr = inet_addr(text);
	return a;
}

static bool leads(struct names *names, union name_sockaddr name, const char *born, int port)
{
	struct name_address found;

	return names_address_find(names, IPPROTO_TCP, &name.sa, born, &found) == 0 &&
	       found.real.in.sin_port == htons((uint16_t)port);
}

/* Two programs were bound to the same wildcard on two hosts: each is reached at the addresses of its host. */
static void wildcards(void **state)
{
	struct names *names = *state;
	struct name_address one = {.protocol = IPPROTO_TCP, .host = "c", .born = "a"}, other = one, found;
	union name_sockaddr of_a[] = {at("10.77.0.1", 80), at("127.0.0.1", 80)};
	union name_sockaddr of_b[] = {at("10.77.0.2", 80), at("127.0.0.1", 80)};

	assert_int_equal(names_cluster_set(names, "a"), 0);
	one.name = other.name = at("0.0.0.0", 80);
	one.real = at("10.77.0.3", 1001);
	other.real = at("10.77.0.3", 1002);
	strcpy(other.born, "b");
	assert_int_equal(names_address_set(names, &one, of_a, 2), 0);
	assert_int_equal(names_address_set(names, &other, of_b, 2), 0);
	assert_true(names_address_any(names));
	assert_true(leads(names, at("10.77.0.1", 80), NULL, 1001));
	assert_true(leads(names, at("10.77.0.2", 80), NULL, 1002));
	assert_true(leads(names, at("127.0.0.1", 80), NULL, 1001));
	assert_true(leads(names, at("127.0.0.1", 80), "a", 1001));
	assert_true(leads(names, at("0.0.0.0", 80), "b", 1002));
	assert_false(leads(names, at("127.0.0.1", 80), "c", 1001));
	assert_int_equal(names_address_find_real(names, IPPROTO_TCP, &other.real.sa, &found), 0);
	assert_memory_equal(&found.name.in, &of_b[0].in, sizeof(of_b[0].in));
	/* the second replaces the first */
	one.real = at("10.77.0.3", 1003);
	assert_int_equal(names_address_set(names, &one, of_a, 1), 0);
	assert_true(leads(names, at("10.77.0.1", 80), NULL, 1003));
	assert_false(leads(names, at("127.0.0.1", 80), "a", 1001));
	names_address_remove(names, &one);
	assert_false(leads(names, at("10.77.0.1", 80), NULL, 1003));
	assert_true(leads(names, at("10.77.0.2", 80), NULL, 1002));
	/* a caller through a bridge cannot be reached, and stays when the registry is read again */
	one.caller = true;
	one.name = at("10.77.0.9", 4711);
	one.real = at("127.0.0.1", 1004);
	strcpy(one.host, "a");
	assert_int_equal(names_address_set(names, &one, NULL, 0), 0);
	names_address_clear(names, false);
	assert_false(leads(names, at("10.77.0.2", 80), NULL, 1002));
	assert_false(leads(names, one.name, NULL, 1004));
	assert_int_equal(names_address_find_real(names, IPPROTO_TCP, &one.real.sa, &found), 0);
	names_address_remove(names, &one);
	assert_false(names_address_any(names));
}

/* Writers are killed at random moments; readers always find the entries that were not being changed. */
static void killed_writers(void **state)
{
	struct names *names = *state;
	struct name_address stays = address(7), found;

	assert_int_equal(names_cluster_set(names, "a"), 0);
	names_cluster_begin(names);
	assert_int_equal(names_address_set(names, &stays, NULL, 0), 0);
	for (int i = 0; i < 60; i++) {
		pid_t writer = fork();

		if (writer == 0)
			for (int n = 100;; n = n < 400 ? n + 1 : 100) {
				struct name_address one = address(n);

				if (names_address_set(names, &one, NULL, 0) < 0)
					_exit(1);
				names_address_remove(names, &one);
			}
		usleep(500 + i * 37);
		kill(writer, SIGKILL);
		assert_int_equal(waitpid(writer, NULL, 0), writer);
		assert_int_equal(names_address_find(names, IPPROTO_TCP, &stays.name.sa, NULL, &found), 0);
		assert_int_equal(found.vpid.n, 7);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(alone_holds_all, set_up, tear_down),
		cmocka_unit_test_setup_teardown(numbers_of_other_hosts, set_up, tear_down),
		cmocka_unit_test_setup_teardown(all_of_a_block, set_up, tear_down),
		cmocka_unit_test_setup_teardown(who_has_left, set_up, tear_down),
		cmocka_unit_test_setup_teardown(addresses, set_up, tear_down),
		cmocka_unit_test_setup_teardown(wildcards, set_up, tear_down),
		cmocka_unit_test_setup_teardown(killed_writers, set_up, tear_down),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
