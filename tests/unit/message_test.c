/* Repeated fields: appending to one that was unpacked, whose array has exactly its elements. */
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

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_append_to_unpacked)};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
