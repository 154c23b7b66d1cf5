/* Repeated fields: appending to one that was unpacked, whose array has exactly its elements. Unpacking:
 * messages that contain themselves. */
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/cluster.pb-c.h"
#include "proto/message.h"
#include "tests/unit/unit.h"

/* A message with `n` strings, as it comes from another host. */
static Pbeam__MigrateBegin *unpacked(size_t n)
{
	Pbeam__MigrateBegin *made = message_new(&pbeam__migrate_begin__descriptor), *out;
	uint8_t *packed;
	size_t len;
	char text[16];

	for (size_t i = 0; i < n; i++) {
		snprintf(text, sizeof(text), "%zu", i);
		assert_int_equal(message_append_string(&made->maps, &made->n_maps, text), 0);
	}
	len = protobuf_c_message_get_packed_size(&made->base);
	packed = malloc(len + 1);
	assert_non_null(packed);
	protobuf_c_message_pack(&made->base, packed);
	out = pbeam__migrate_begin__unpack(NULL, len, packed);
	assert_non_null(out);
	free(packed);
	message_free(made);
	return out;
}

static void test_append_to_unpacked(void **state)
{
	for (size_t n = 0; n < 40; n++) {
		Pbeam__MigrateBegin *begin = unpacked(n);

		for (size_t more = 0; more < 5; more++) {
			assert_int_equal(message_append_string(&begin->maps, &begin->n_maps, "more"), 0);
			assert_true(malloc_usable_size(begin->maps) >= begin->n_maps * sizeof(char *));
		}
		assert_int_equal(begin->n_maps, n + 5);
		for (size_t i = 0; i < n; i++)
			assert_int_equal(strtoul(begin->maps[i], NULL, 10), i);
		message_free(begin);
	}
}

/* Writes the field `tag` with a length before the `len` bytes that end at `end`; returns its beginning. */
static uint8_t *put_before(uint8_t *end, uint8_t tag, size_t len)
{
	uint8_t head[8], *at;
	size_t n = 0;

	head[n++] = tag;
	for (size_t left = len; left || n == 1; left >>= 7)
		head[n++] = (uint8_t)((left & 0x7f) | (left >> 7 ? 0x80 : 0));
	at = end - len - n;
	memcpy(at, head, n);
	return at;
}

/* Requests to the registry, each within the one before. */
static bool unpacks_nested(size_t depth)
{
	enum { ALL = 8 << 3 | 2, MOST = 6 };
	const size_t room = depth * MOST + 1;
	uint8_t *bytes = malloc(room), *at = bytes + room;
	void *message;

	assert_non_null(bytes);
	for (size_t i = 1; i < depth; i++)
		at = put_before(bytes + room, ALL, (size_t)(bytes + room - at));
	message = message_unpack(&pbeam__registry_request__descriptor, (size_t)(bytes + room - at), at);
	free(bytes);
	message_free(message);
	return message != NULL;
}

/* A peer with the key could end pbeamd by one message: unpacking takes stack for each level. */
static void test_nesting_is_bounded(void **state)
{
	assert_true(unpacks_nested(1));
	assert_true(unpacks_nested(2));
	assert_true(unpacks_nested(MESSAGE_DEPTH_MAX));
	assert_false(unpacks_nested(MESSAGE_DEPTH_MAX + 1));
	assert_false(unpacks_nested(200000));
}

static void test_malformed(void **state)
{
	static const uint8_t cut[] = {8 << 3 | 2, 5, 1},
			     endless[] = {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff};

	assert_null(message_unpack(&pbeam__registry_request__descriptor, sizeof(cut), cut));
	assert_null(message_unpack(&pbeam__registry_request__descriptor, sizeof(endless), endless));
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_append_to_unpacked),
					   cmocka_unit_test(test_nesting_is_bounded),
					   cmocka_unit_test(test_malformed)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
