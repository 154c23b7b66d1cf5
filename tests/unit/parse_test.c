/* Times, sizes, signals and numbers from command lines; names of jobs. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "base/parse.h"
#include "image/store.h"
#include "tests/unit/unit.h"

static void test_durations(void **state)
{
	static const struct {
		const char *text;
		uint64_t ns;
	} good[] = {{"1", 1000000000},	   {"90s", 90000000000}, {"1.5m", 90000000000},
		    {"2h", 7200000000000}, {"300ms", 300000000}, {"1d", 86400000000000}};
	static const char *const bad[] = {"",	 "s",	"-1",	"0",   "1x",	"1 s",
					  "inf", "nan", "0x10", "1e3", "1.2.3", "9999999h"};
	struct err err = ERR_INIT;
	uint64_t ns;

	for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
		assert_int_equal(parse_duration(good[i].text, &ns, &err), 0);
		assert_int_equal(ns, good[i].ns);
	}
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		assert_true(parse_duration(bad[i], &ns, &err) < 0);
}

static void test_sizes(void **state)
{
	static const struct {
		const char *text;
		uint64_t bytes;
	} good[] = {
		{"0", 0},	   {"4096", 4096}, {"64K", 65536}, {"64MiB", 64u << 20}, {"1.5g", 1610612736},
		{"1T", 1ull << 40}};
	static const char *const bad[] = {"", "K", "-1", "1Q", "1 K", "99999999T", "0x1"};
	struct err err = ERR_INIT;
	uint64_t bytes;

	for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
		assert_int_equal(parse_size(good[i].text, &bytes, &err), 0);
		assert_int_equal(bytes, good[i].bytes);
	}
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		assert_true(parse_size(bad[i], &bytes, &err) < 0);
}

static void test_signals(void **state)
{
	struct err err = ERR_INIT;

	assert_int_equal(parse_signal("TERM", &err), SIGTERM);
	assert_int_equal(parse_signal("SIGTERM", &err), SIGTERM);
	assert_int_equal(parse_signal("kill", &err), SIGKILL);
	assert_int_equal(parse_signal("9", &err), 9);
	assert_int_equal(parse_signal("0", &err), 0);
	assert_int_equal(parse_signal("RTMIN+3", &err), SIGRTMIN + 3);
	assert_int_equal(parse_signal("SIGRTMAX-1", &err), SIGRTMAX - 1);
	assert_true(parse_signal("NONSENSE", &err) < 0);
	assert_true(parse_signal("65", &err) < 0);
	assert_true(parse_signal("-1", &err) < 0);
	assert_true(parse_signal("", &err) < 0);
	assert_true(parse_signal("RTMIN+99", &err) < 0);
}

static void test_names(void **state)
{
	static const char *const bad[] = {"", "4711", "a/b", "..", ".hidden", "-d", "a b", "a\nb"};
	struct err err = ERR_INIT;

	assert_int_equal(store_check_name("postgres-1", &err), 0);
	assert_int_equal(store_check_name("1st", &err), 0);
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		assert_true(store_check_name(bad[i], &err) < 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_durations),
		cmocka_unit_test(test_sizes),
		cmocka_unit_test(test_signals),
		cmocka_unit_test(test_names),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
