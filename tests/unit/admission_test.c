/* Which connections of strangers pbeamd takes, and the look at their first message. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "channel/tls.h"
#include "pbeamd/transport/admission.h"
#include "tests/unit/unit.h"

static const struct admission_limits usual = {ADMISSION_START, ADMISSION_RATE, ADMISSION_FULL};

static void test_option(void **state)
{
	static const char *const bad[] = {"",		"10",	   "10:30",	"10:30:60:1",
					  "0:30:60",	"10:0:60", "10:101:60", "61:30:60",
					  "10:30:9999", "a:b:c",   "-1:30:60"};
	struct admission_limits limits;
	struct err err = ERR_INIT;

	assert_int_equal(admission_parse(&limits, "10:30:60", &err), 0);
	assert_true(limits.start == 10 && limits.rate == 30 && limits.full == 60);
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		assert_true(admission_parse(&limits, bad[i], &err) < 0);
}

static bool same_source(const char *a, const char *b)
{
	struct origin one = origin_of_text(a), other = origin_of_text(b);

	return origin_is_same_source(&one, &other);
}

static bool same_network(const char *a, const char *b)
{
	struct origin one = origin_of_text(a), other = origin_of_text(b);

	return origin_is_same_network(&one, &other);
}

static void test_prefixes(void **state)
{
	assert_true(same_source("10.0.0.1:1", "10.0.0.1:2"));
	assert_true(same_source("10.0.0.1", "[::ffff:10.0.0.1]:7"));
	assert_false(same_source("10.0.0.1:1", "10.0.0.2:1"));
	assert_true(same_network("10.0.0.1:1", "10.0.0.2:1"));
	assert_false(same_network("10.0.0.1:1", "10.0.1.1:1"));
	assert_true(same_source("[2001:db8:0:1::1]:1", "[2001:db8:0:1:ffff::2]:1"));
	assert_true(same_source("2001:db8:0:1::1", "[2001:db8:0:1::1]:9"));
	assert_false(same_source("[2001:db8:0:1::1]:1", "[2001:db8:0:2::1]:1"));
	assert_true(same_network("[2001:db8:0:1::1]:1", "[2001:db8:0:2::1]:1"));
	assert_false(same_network("[2001:db8:1::1]:1", "[2001:db8:2::1]:1"));
	assert_int_equal(origin_of_text("some.host:7113").family, ORIGIN_UNKNOWN);
	assert_int_equal(origin_of_text("").family, ORIGIN_UNKNOWN);
	assert_int_equal(origin_of_text("[").family, ORIGIN_UNKNOWN);
}

static void test_drop_grows(void **state)
{
	int before = 0;

	for (unsigned all = 0; all <= usual.full; all++) {
		const struct admission_count pending = {.all = all};
		int dropped = 0;

		for (unsigned chance = 0; chance < 100; chance++)
			dropped += admission_decide(&usual, &pending, chance) == ADMISSION_DROPPED;
		assert_true(dropped >= before);
		if (all < usual.start)
			assert_int_equal(dropped, 0);
		if (all == usual.start)
			assert_int_equal(dropped, usual.rate);
		if (all == usual.full)
			assert_int_equal(dropped, 100);
		before = dropped;
	}
}

static void test_shares(void **state)
{
	struct admission_count pending = {.all = 16, .network = 16, .source = 15};

	assert_int_equal(admission_decide(&usual, &pending, 0), ADMISSION_TAKEN);
	pending.source = 16;
	assert_int_equal(admission_decide(&usual, &pending, 0), ADMISSION_SOURCE_FULL);
	pending = (struct admission_count){.all = 64, .network = 64};
	assert_int_equal(admission_decide(&usual, &pending, 99), ADMISSION_NETWORK_FULL);
	/* even the smallest limit takes one */
	pending = (struct admission_count){.all = 0};
	assert_int_equal(admission_decide(&(struct admission_limits){1, 100, 1}, &pending, 0),
			 ADMISSION_TAKEN);
}

static void test_known(void **state)
{
	struct admission_known known = {.used = 0};
	struct origin origin = origin_of_text("10.0.0.1:1"), local = {.family = ORIGIN_UNIX},
		      nowhere = {.family = ORIGIN_UNKNOWN};

	assert_false(admission_knows(&known, &origin));
	assert_true(admission_knows(&known, &local));
	admission_remember(&known, &nowhere);
	assert_false(admission_knows(&known, &nowhere));
	for (int i = 0; i < 3; i++)
		admission_remember(&known, &origin);
	assert_int_equal(known.used, 1);
	assert_true(admission_knows(&known, &origin));
	for (int i = 0; i < ADMISSION_KNOWN_MAX; i++) {
		struct origin other = origin;

		other.address[1] = 1;
		other.address[3] = (uint8_t)i;
		admission_remember(&known, &other);
	}
	assert_int_equal(known.used, ADMISSION_KNOWN_MAX);
	assert_false(admission_knows(&known, &origin));
}

static void test_first_record(void **state)
{
	static const uint8_t good[] = {22, 3, 1, 0, 8, 1, 0, 0, 4};
	uint8_t bytes[sizeof(good)];

	for (size_t have = 0; have < sizeof(good); have++)
		assert_int_equal(first_record_check(good, have, have), 0);
	assert_int_equal(first_record_check(good, sizeof(good), 12), 0);
	assert_int_equal(first_record_check(good, sizeof(good), 13), 1);
	for (size_t i = 0; i < sizeof(good); i++) {
		memcpy(bytes, good, sizeof(good));
		bytes[i] ^= 0x80;
		/* the low byte of the version is not looked at (RFC 8446, 5.1) */
		assert_int_equal(first_record_check(bytes, sizeof(bytes), 13), i == 2 ? 1 : -EPROTO);
	}
	assert_int_equal(first_record_check((const uint8_t *)"G", 1, 1), -EPROTO);
}

/* A part of the message stays in the socket. */
static void test_look(void **state)
{
	static const uint8_t good[] = {22, 3, 1, 0, 8, 1, 0, 0, 4, 'a', 'b', 'c', 'd'};
	struct err err = ERR_INIT;
	uint8_t bytes[sizeof(good)];
	int ends[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
	assert_int_equal(channel_look_first(ends[0], &err), 0);
	assert_int_equal(send(ends[1], good, 7, 0), 7);
	assert_int_equal(channel_look_first(ends[0], &err), 0);
	assert_int_equal(send(ends[1], good + 7, 6, 0), 6);
	assert_int_equal(channel_look_first(ends[0], &err), 1);
	assert_int_equal(recv(ends[0], bytes, sizeof(bytes), 0), sizeof(good));
	close(ends[1]);
	assert_int_equal(channel_look_first(ends[0], &err), -EPIPE);
	close(ends[0]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_option),	   cmocka_unit_test(test_prefixes),
		cmocka_unit_test(test_drop_grows), cmocka_unit_test(test_shares),
		cmocka_unit_test(test_known),	   cmocka_unit_test(test_first_record),
		cmocka_unit_test(test_look),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
