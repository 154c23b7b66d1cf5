/* Pages as they are sent: differences, and the record of what was sent. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

// clang-format off
// clang-format on

#include "scip/precopy/delta.h"
#include "scip/precopy/notes.h"
#include "tests/unit/unit.h"

static uint64_t before[DELTA_WORDS], after[DELTA_WORDS];

static void fill(uint64_t *page, unsigned seed)
{
	srand(seed);
	for (int i = 0; i < DELTA_WORDS; i++)
		page[i] = (uint64_t)rand() << 32 | (uint64_t)rand();
}

static void check_delta(void)
{
	uint8_t delta[DELTA_MAX];
	uint64_t page[DELTA_WORDS];
	const int len = delta_make(before, after, delta);

	memcpy(page, before, sizeof(page));
	if (len < 0) {
		assert_int_equal(len, -ENOSPC);
		return;
	}
	assert_int_equal(delta_apply(page, delta, (size_t)len), 0);
	assert_memory_equal(page, after, sizeof(page));
	for (int cut = 1; cut < len && cut < 64; cut++) /* between two parts any choice is good */
		assert_true(delta_apply(page, delta, (size_t)(len - cut)) <= 0);
}

static void test_delta(void **state)
{
	uint8_t delta[DELTA_MAX];

	fill(before, 1);
	memcpy(after, before, sizeof(after));
	assert_int_equal(delta_make(before, after, delta), 0);
	for (int i = 0; i < DELTA_WORDS; i++) {
		after[i] ^= 1;
		assert_int_equal(delta_make(before, after, delta), 12);
		check_delta();
		after[i] ^= 1;
	}
	for (int n = 0; n < 2000; n++) {
		memcpy(after, before, sizeof(after));
		for (int i = 0; i < n / 4; i++)
			after[rand() % DELTA_WORDS]++;
		check_delta();
	}
	fill(after, 2);
	assert_int_equal(delta_make(before, after, delta), -ENOSPC);
}

/* Random bytes are refused or change only the page. */
static void test_hostile(void **state)
{
	uint8_t delta[64], *page = malloc(DELTA_PAGE); /* the sanitizer checks its bounds */
	const uint8_t cases[][8] = {{0},	  {0, 0, 0, 0},	 {255, 255, 1, 0}, {0, 0, 255, 255},
				    {0, 2, 1, 0}, {255, 1, 2, 0}};

	assert_non_null(page);
	memset(page, 0, DELTA_PAGE);
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		assert_int_equal(delta_apply(page, cases[i], sizeof(cases[i])), -EPROTO);
	srand(3);
	for (int n = 0; n < 100000; n++) {
		const size_t len = (size_t)rand() % sizeof(delta);

		for (size_t i = 0; i < len; i++)
			delta[i] = (uint8_t)(rand() % 3 ? rand() % 4 : rand());
		assert_true(delta_apply(page, delta, len) <= 0);
	}
	free(page);
}

static void test_notes(void **state)
{
	struct note_store store;
	struct notes notes;
	uint8_t delta[DELTA_MAX];
	size_t len;

	note_store_init(&store);
	notes_init(&notes, 8 * DELTA_PAGE);
	fill(before, 1);
	assert_int_equal(notes_take(&notes, &store, 3, before, delta, &len), NOTE_WHOLE);
	assert_int_equal(notes_take(&notes, &store, 3, before, delta, &len), NOTE_SAME);
	before[7]++;
	assert_int_equal(notes_take(&notes, &store, 3, before, delta, &len), NOTE_WHOLE); /* and stored */
	before[8]++;
	assert_int_equal(notes_take(&notes, &store, 3, before, delta, &len), NOTE_DELTA);
	assert_int_equal(len, 12);
	assert_int_equal(notes_take(&notes, &store, 3, before, delta, &len), NOTE_SAME);
	fill(before, 9);
	assert_int_equal(notes_take(&notes, &store, 3, before, delta, &len), NOTE_WHOLE);
	assert_int_equal(notes_take(&notes, &store, 3, before, delta, &len), NOTE_SAME);
	/* another page with the same contents */
	assert_int_equal(notes_take(&notes, &store, 4, before, delta, &len), NOTE_WHOLE);
	/* a page that is not there */
	assert_int_equal(notes_take(&notes, &store, 8, before, delta, &len), NOTE_WHOLE);
	assert_int_equal(notes_take(&notes, &store, 8, before, delta, &len), NOTE_WHOLE);
	notes_free(&notes);
	note_store_free(&store);
	/* no room for the contents */
	notes_init(&notes, 8 * DELTA_PAGE);
	store = (struct note_store){0};
	for (int i = 0; i < 4; i++) {
		fill(before, (unsigned)i + 20);
		assert_int_equal(notes_take(&notes, &store, 0, before, delta, &len), NOTE_WHOLE);
		assert_int_equal(notes_take(&notes, &store, 0, before, delta, &len), NOTE_SAME);
	}
	notes_free(&notes);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_delta),
		cmocka_unit_test(test_hostile),
		cmocka_unit_test(test_notes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
