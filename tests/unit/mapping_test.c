/* The pure parts of a dump: parses lines of smaps, cuts ranges out of mappings, and joins pagemap words
 * into runs of pages. */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "proto/message.h"
#include "scip/dump/mappings.h"
#include "scip/dump/page_scan.h"
#include "tests/unit/unit.h"

#define RW (PROT_READ | PROT_WRITE)

static Pbeam__Mapping *parse(struct procfs_map map, char *name, const char *flags, int expect)
{
	struct err err = ERR_INIT;
	Pbeam__Mapping *out = message_new(&pbeam__mapping__descriptor);

	map.start = 0x10000;
	map.end = 0x20000;
	map.name = name;
	strcpy(map.vm_flags, flags);
	assert_non_null(out);
	assert_int_equal(mapping_from_map(&map, out, &err), expect);
	if (expect)
		assert_non_null(strstr(err.text, ";"));
	return out;
}

static void test_kinds(void **state)
{
	static const struct {
		const char *name;
		bool shared, deleted;
		Pbeam__Mapping__Kind kind;
	} CASES[] = {
		{"", false, false, PBEAM__MAPPING__KIND__ANON_PRIVATE},
		{"[anon:arena]", false, false, PBEAM__MAPPING__KIND__ANON_PRIVATE},
		{"[heap]", false, false, PBEAM__MAPPING__KIND__HEAP},
		{"[stack]", false, false, PBEAM__MAPPING__KIND__STACK},
		{"[vdso]", false, false, PBEAM__MAPPING__KIND__VDSO},
		{"[vvar]", false, false, PBEAM__MAPPING__KIND__VVAR},
		{"[vvar_vclock]", false, false, PBEAM__MAPPING__KIND__VVAR},
		{"[vsyscall]", false, false, PBEAM__MAPPING__KIND__VSYSCALL},
		{"/lib/x.so", false, false, PBEAM__MAPPING__KIND__FILE_PRIVATE},
		{"/lib/x.so", false, true, PBEAM__MAPPING__KIND__FILE_PRIVATE},
		{"/var/db", true, false, PBEAM__MAPPING__KIND__FILE_SHARED},
		{"/var/db", true, true, PBEAM__MAPPING__KIND__SHARED_MEMORY},
		{"/dev/zero", true, true, PBEAM__MAPPING__KIND__SHARED_MEMORY},
		{"/memfd:x", true, true, PBEAM__MAPPING__KIND__SHARED_MEMORY},
		{"/SYSV00000000", true, true, PBEAM__MAPPING__KIND__SYSV},
		{"[anon_shmem:x]", true, true, PBEAM__MAPPING__KIND__SHARED_MEMORY},
	};

	for (size_t i = 0; i < sizeof(CASES) / sizeof(CASES[0]); i++) {
		char name[32];
		Pbeam__Mapping *m;

		strcpy(name, CASES[i].name);
		m = parse((struct procfs_map){.prot = RW,
					      .shared = CASES[i].shared,
					      .deleted = CASES[i].deleted},
			  name, "rd wr mr mw me", 0);
		assert_int_equal(m->kind, CASES[i].kind);
		assert_int_equal(m->max_prot, PROT_READ | PROT_WRITE | PROT_EXEC);
		message_free(m);
	}
}

static void test_flags(void **state)
{
	char name[] = "";
	Pbeam__Mapping *m = parse((struct procfs_map){.prot = RW, .pkey = 3}, name,
				  "rd wr mr mw me gd lo lf dc hg nr sl ", 0);

	assert_int_equal(m->flags, MAP_PRIVATE | MAP_ANONYMOUS | MAP_GROWSDOWN | MAP_NORESERVE);
	assert_int_equal(m->advice, PBEAM__MAPPING__ADVICE__DONTFORK | PBEAM__MAPPING__ADVICE__HUGEPAGE);
	assert_true(m->locked && m->lock_on_fault && m->grows_down && m->sealed);
	assert_int_equal(m->pkey, 3);
	message_free(m);
}

static void test_refused(void **state)
{
	static const char *const NAMES[] = {"anon_inode:[io_uring]", "anon_inode:[perf_event]", "socket:[12]",
					    "/[aio]"};
	static const char *const FLAGS[] = {"rd um", "rd wr uw", "ht", "ss", "rd io pf"};

	for (size_t i = 0; i < sizeof(NAMES) / sizeof(NAMES[0]); i++) {
		char name[32];

		strcpy(name, NAMES[i]);
		message_free(
			parse((struct procfs_map){.prot = RW, .shared = true}, name, "rd wr sh", -ENOTSUP));
	}
	for (size_t i = 0; i < sizeof(FLAGS) / sizeof(FLAGS[0]); i++) {
		char name[] = "";

		message_free(parse((struct procfs_map){.prot = RW}, name, FLAGS[i], -ENOTSUP));
	}
}

static void test_without(void **state)
{
	const struct mapping_range ours[] = {{0x5000, 0x6000}, {0x2000, 0x3000}};
	struct mapping_range out[3];

	assert_int_equal(mapping_without((struct mapping_range){0x1000, 0x9000}, ours, 2, out), 3);
	assert_int_equal(out[0].start, 0x1000);
	assert_int_equal(out[0].end, 0x2000);
	assert_int_equal(out[1].start, 0x3000);
	assert_int_equal(out[1].end, 0x5000);
	assert_int_equal(out[2].start, 0x6000);
	assert_int_equal(out[2].end, 0x9000);
	assert_int_equal(mapping_without((struct mapping_range){0x5000, 0x6000}, ours, 2, out), 0);
	assert_int_equal(mapping_without((struct mapping_range){0x5800, 0x6800}, ours, 2, out), 1);
	assert_int_equal(out[0].start, 0x6000);
	assert_int_equal(mapping_without((struct mapping_range){0x7000, 0x8000}, ours, 2, out), 1);
}

static void test_runs(void **state)
{
	const uint64_t present = UINT64_C(1) << 63, own = UINT64_C(1) << 56, file = UINT64_C(1) << 61;
	const uint64_t swapped = UINT64_C(1) << 62, guard = UINT64_C(1) << 58;
	const uint64_t words[] = {present, present | own, 0, swapped, present | file, guard};
	struct page_runs runs = {NULL, 0, 0}, split = {NULL, 0, 0};

	assert_int_equal(page_runs_from_pagemap(words, 6, 0x1000, &runs), 0);
	assert_int_equal(runs.n, 3);
	assert_int_equal(runs.v[0].start, 0x1000);
	assert_int_equal(runs.v[0].count, 2);
	assert_int_equal(runs.v[1].start, 0x4000);
	assert_int_equal(runs.v[1].count, 1);
	assert_int_equal(runs.v[2].kind, PAGE_GUARD);
	assert_int_equal(page_runs_split(words, 2, 0x1000, &split), 0);
	assert_int_equal(page_runs_split(&words[3], 1, 0x4000, &split), 0);
	assert_int_equal(split.n, 3);
	assert_int_equal(split.v[0].kind, PAGE_COMMON);
	assert_int_equal(split.v[1].kind, PAGE_OWN);
	assert_int_equal(split.v[2].kind, PAGE_OWN);
	page_runs_free(&runs);
	page_runs_free(&split);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_kinds),	cmocka_unit_test(test_flags), cmocka_unit_test(test_refused),
		cmocka_unit_test(test_without), cmocka_unit_test(test_runs),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
