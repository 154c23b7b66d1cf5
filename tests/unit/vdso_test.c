/* The bridge from an old vdso to the present one, run in this process. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <time.h>

#include "scip/rebuild/vdso_bridge.h"
#include "scip/rebuild/vdso_symbols.h"
#include "scip/tracee/vdso.h"
#include "tests/tools/vdso_make.h"
#include "tests/unit/unit.h"

static uint8_t old[VDSO_MAKE_PAGES * VDSO_MAKE_PAGE], now[VDSO_MAKE_PAGES * VDSO_MAKE_PAGE];

/* mov $7, %eax; ret */
static const uint8_t seven[] = {0xb8, 7, 0, 0, 0, 0xc3};
/* mov $8, %eax; ret */
static const uint8_t eight[] = {0xb8, 8, 0, 0, 0, 0xc3};
/* lea (%rdi,%rsi), %rax; add %rdx, %rax; add %rcx, %rax; add %r8, %rax; add %r9, %rax; ret */
static const uint8_t sum[] = {0x48, 0x8d, 0x04, 0x37, 0x48, 0x01, 0xd0, 0x48, 0x01,
			      0xc8, 0x4c, 0x01, 0xc0, 0x4c, 0x01, 0xc8, 0xc3};

static const struct vdso_make_function OLD[] = {
	{"__vdso_sum", NULL, 0},       {"__vdso_seven", NULL, 0},     {"__vdso_eight", NULL, 0},
	{"__vdso_getrandom", NULL, 0}, {"__vdso_from_past", NULL, 0}, {"__vdso_clock_gettime", NULL, 0},
};
static const struct vdso_make_function NOW[] = {
	{"__vdso_eight", eight, sizeof(eight)},
	{"__vdso_new", NULL, 0},
	{"__vdso_seven", seven, sizeof(seven)},
	{"__vdso_sum", sum, sizeof(sum)},
};
enum { NOLD = sizeof(OLD) / sizeof(OLD[0]), NNOW = sizeof(NOW) / sizeof(NOW[0]) };

static uint8_t *map_text(const uint8_t *from, size_t len)
{
	uint8_t *p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	assert_true(p != MAP_FAILED);
	memcpy(p, from, len);
	return p;
}

static void *function(uint8_t *text, size_t len, const char *name)
{
	struct vdso_symbol symbols[VDSO_SYMBOLS_MAX];
	int n = vdso_symbols_read(text, len, symbols);

	for (int i = 0; i < n; i++)
		if (!strcmp(symbols[i].name, name))
			return text + symbols[i].offset;
	fail_msg("no %s", name);
	return NULL;
}

static void test_leads_to_functions_of_another_shape(void **state)
{
	size_t was = vdso_make(old, 3, OLD, NOLD, VDSO_MAKE_ROOM), is = vdso_make(now, 2, NOW, NNOW, 64);
	uint8_t *text = map_text(old, was), *new_text = map_text(now, is);
	struct err err = ERR_INIT;
	long (*add)(long, long, long, long, long, long);
	int (*number)(void);
	long (*past)(void);
	long (*random)(void *, size_t, unsigned, void *, size_t);
	int (*clock)(clockid_t, struct timespec *);
	struct timespec t;
	uint64_t bytes[2] = {0, 0};

	(void)state;
	assert_int_equal(vdso_bridge_patch(old, was, now, is, (uint64_t)(uintptr_t)new_text, text, &err), 0);
	assert_int_equal(mprotect(text, was, PROT_READ | PROT_EXEC), 0);
	assert_int_equal(mprotect(new_text, is, PROT_READ | PROT_EXEC), 0);
	*(void **)&add = function(text, was, "__vdso_sum");
	assert_int_equal(add(1, 20, 300, 4000, 50000, 600000), 654321);
	*(void **)&number = function(text, was, "__vdso_seven");
	assert_int_equal(number(), 7);
	*(void **)&number = function(text, was, "__vdso_eight");
	assert_int_equal(number(), 8);
	/* without a successor */
	*(void **)&past = function(text, was, "__vdso_from_past");
	assert_int_equal(past(), -ENOSYS);
	*(void **)&clock = function(text, was, "__vdso_clock_gettime");
	assert_int_equal(clock(CLOCK_MONOTONIC, &t), 0);
	assert_int_equal(clock(12345, &t), -EINVAL);
	*(void **)&random = function(text, was, "__vdso_getrandom");
	assert_int_equal(random(bytes, sizeof(bytes), GRND_NONBLOCK, NULL, 0), sizeof(bytes));
	assert_true(bytes[0] != bytes[1]);
	assert_int_equal(random(NULL, 0, 0, NULL, (size_t)-1), -ENOSYS);
	munmap(text, was);
	munmap(new_text, is);
}

static void test_leads_to_itself(void **state)
{
	size_t len;
	const uint8_t *vdso = vdso_bytes(&len);
	size_t whole = (len + 4095) / 4096 * 4096;
	struct vdso_symbol symbols[VDSO_SYMBOLS_MAX];
	struct err err = ERR_INIT;
	int (*clock)(clockid_t, struct timespec *);
	struct timespec t, u;
	uint8_t *text;

	(void)state;
	assert_true(vdso_symbols_read(vdso, len, symbols) > 4);
	text = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	assert_true(text != MAP_FAILED);
	memcpy(text, vdso, len);
	assert_int_equal(vdso_bridge_patch(vdso, len, vdso, len, (uint64_t)(uintptr_t)vdso, text, &err), 0);
	assert_int_equal(mprotect(text, whole, PROT_READ | PROT_EXEC), 0);
	*(void **)&clock = function(text, len, "__vdso_clock_gettime");
	assert_int_equal(clock(CLOCK_MONOTONIC, &t), 0);
	assert_int_equal(clock_gettime(CLOCK_MONOTONIC, &u), 0);
	assert_true(u.tv_sec - t.tv_sec <= 1);
	munmap(text, whole);
}

static void test_refuses_short_functions(void **state)
{
	size_t was = vdso_make(old, 2, OLD, NOLD, 12), is = vdso_make(now, 2, NOW, NNOW, 64);
	struct err err = ERR_INIT;

	(void)state;
	assert_int_equal(vdso_bridge_patch(old, was, now, is, 0x1000, NULL, &err), -ENOTSUP);
	assert_non_null(strstr(err.text, "__vdso_sum"));
}

static void test_refuses_what_is_no_vdso(void **state)
{
	size_t was = vdso_make(old, 2, OLD, NOLD, 64), is = vdso_make(now, 2, NOW, NNOW, 64);
	struct err err = ERR_INIT;

	(void)state;
	assert_int_equal(vdso_bridge_patch(old, 0, now, is, 0, NULL, &err), -ENOTSUP);
	assert_int_equal(vdso_bridge_patch(old, 64, now, is, 0, NULL, &err), -ENOTSUP);
	assert_int_equal(vdso_bridge_patch(old, 1000, now, is, 0, NULL, &err), -ENOTSUP);
	assert_int_equal(vdso_bridge_patch(old, was, now, 100, 0, NULL, &err), -EINVAL);
}

/* Damages every byte of the headers in several ways. The sanitizers watch. */
static void test_damaged_headers(void **state)
{
	static uint8_t text[sizeof(old)];
	size_t was = vdso_make(old, 2, OLD, NOLD, 64), is = vdso_make(now, 2, NOW, NNOW, 64);

	(void)state;
	for (size_t i = 0; i < sizeof(struct vdso_make); i++)
		for (int bit = 0; bit < 8; bit++) {
			struct err err = ERR_INIT;
			uint8_t *copy = malloc(was); /* of the exact length */

			memcpy(copy, old, was);
			copy[i] ^= (uint8_t)(1u << bit);
			memcpy(text, copy, was);
			(void)!vdso_bridge_patch(copy, was, now, is, 0x1000, text, &err);
			(void)!vdso_bridge_patch(now, is, copy, was, 0x1000, NULL, &err);
			free(copy);
		}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_leads_to_functions_of_another_shape),
		cmocka_unit_test(test_leads_to_itself),
		cmocka_unit_test(test_refuses_short_functions),
		cmocka_unit_test(test_refuses_what_is_no_vdso),
		cmocka_unit_test(test_damaged_headers),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
