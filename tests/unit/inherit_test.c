/*
 * Pages that processes pass on to their children. The requests are carried out in a model of address spaces,
 * in the plan's order, and must give every process exactly its pages, with as many of them shared as in the
 * image.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "scip/rebuild/inherit.h"
#include "tests/unit/unit.h"

enum { PAGE = 4096, BASE = 0x100000, SPAN = 64, FAMILY_MAX = 16 };

/* Each page's place in the file, 0 for none; -1 not mapped. `copy`, a number that each load sets, is equal
 * where two processes share a page. */
struct space {
	int64_t file[SPAN];
	int copy[SPAN];
};

struct family {
	Pbeam__Process processes[FAMILY_MAX];
	Pbeam__Process *list[FAMILY_MAX];
	Pbeam__Memory memories[FAMILY_MAX];
	int from[FAMILY_MAX];
	int n;
};

static int add_process(struct family *family, int from)
{
	int i = family->n++;

	assert_true(i < FAMILY_MAX);
	pbeam__process__init(&family->processes[i]);
	pbeam__memory__init(&family->memories[i]);
	family->processes[i].memory = &family->memories[i];
	family->list[i] = &family->processes[i];
	family->from[i] = from;
	return i;
}

static Pbeam__Mapping *add_mapping(struct family *family, int i, int first, int end)
{
	Pbeam__Memory *memory = &family->memories[i];
	Pbeam__Mapping *map = malloc(sizeof(*map));

	pbeam__mapping__init(map);
	map->start = BASE + (uint64_t)first * PAGE;
	map->end = BASE + (uint64_t)end * PAGE;
	map->prot = PROT_READ | PROT_WRITE;
	map->flags = MAP_PRIVATE | MAP_ANONYMOUS;
	memory->mappings = realloc(memory->mappings, (memory->n_mappings + 1) * sizeof(Pbeam__Mapping *));
	memory->mappings[memory->n_mappings++] = map;
	return map;
}

/* Pages [first, end) are version `version`: each version has its own place in the file. */
static void add_pages(Pbeam__Mapping *map, int first, int end, int version)
{
	Pbeam__Pages *pages = malloc(sizeof(*pages));

	pbeam__pages__init(pages);
	pages->address = BASE + (uint64_t)first * PAGE;
	pages->count = (uint64_t)(end - first);
	pages->offset = (uint64_t)(version * SPAN + first + 100) * PAGE;
	map->pages = realloc(map->pages, (map->n_pages + 1) * sizeof(Pbeam__Pages *));
	map->pages[map->n_pages++] = pages;
}

static void free_family(struct family *family)
{
	for (int i = 0; i < family->n; i++) {
		for (size_t m = 0; m < family->memories[i].n_mappings; m++) {
			Pbeam__Mapping *map = family->memories[i].mappings[m];

			for (size_t p = 0; p < map->n_pages; p++)
				free(map->pages[p]);
			free(map->pages);
			free(map);
		}
		free(family->memories[i].mappings);
	}
}

static int page_of(uint64_t address)
{
	assert_true(address >= BASE && address <= BASE + (uint64_t)SPAN * PAGE);
	return (int)((address - BASE) / PAGE);
}

static void unmap_all(struct space *space)
{
	for (int p = 0; p < SPAN; p++)
		space->file[p] = -1;
}

/* Does what scip/fill/fill_mappings.c and fill_contents.c do. */
static void carry_out(struct space *space, const struct inherit_request *request)
{
	static int copies;
	const Pbeam__Memory *memory = request->process.memory;
	struct space before = *space;

	unmap_all(space);
	for (size_t i = 0; i < memory->n_mappings; i++)
		for (int p = page_of(memory->mappings[i]->start); p < page_of(memory->mappings[i]->end); p++)
			space->file[p] = 0;
	for (size_t i = 0; i < request->n_kept; i++) {
		const Pbeam__Mapping *map = memory->mappings[request->kept[i].index];

		for (int p = page_of(map->start); p < page_of(map->end); p++) {
			assert_true(before.file[p] >= 0);
			space->file[p] = before.file[p];
		}
	}
	for (size_t i = 0; i < request->n_dropped; i++)
		for (uint64_t k = 0; k < request->dropped[i].count; k++)
			space->file[page_of(request->dropped[i].address) + (int)k] = 0;
	for (size_t i = 0; i < memory->n_mappings; i++)
		for (size_t j = 0; j < memory->mappings[i]->n_pages; j++) {
			const Pbeam__Pages *pages = memory->mappings[i]->pages[j];

			for (uint64_t k = 0; k < pages->count; k++) {
				int p = page_of(pages->address) + (int)k;

				space->file[p] = (int64_t)(pages->offset + k * PAGE);
				space->copy[p] = ++copies;
			}
		}
}

static void ask(const struct inherit *inherit, const struct family *family, int i, int round,
		struct inherit_state **states, const struct inherit_state **has, struct space *space)
{
	struct inherit_request request;
	struct inherit_state *next = NULL;

	assert_int_equal(inherit_request(*has, family->list[i], &inherit->passing[i], round, &request, &next),
			 0);
	carry_out(space, &request);
	inherit_request_free(&request);
	assert_int_equal(next != NULL, round > 0);
	if (next) {
		next->next = *states;
		*states = next;
		*has = next;
	}
}

/* Makes the family; at the end spaces[i] is process i. Returns the number of pages that it takes. */
static int make_family(const struct family *family, struct space *spaces)
{
	struct inherit inherit = {0};
	struct inherit_state *states = NULL;
	const struct inherit_state *has[FAMILY_MAX] = {0};
	int done[FAMILY_MAX] = {0}, seen = 0, *all = calloc(FAMILY_MAX * SPAN, sizeof(int));

	assert_int_equal(inherit_survey(&inherit, family->list, family->from, (size_t)family->n), 0);
	unmap_all(&spaces[0]);
	/* Parents first; of the children of one parent those of earlier rounds first. */
	for (int i = 0; i < family->n; i++)
		for (int round = 0; round <= inherit.passing[i].nrounds; round++)
			for (int c = i + 1; c < family->n; c++) {
				if (family->from[c] != i || inherit.round[c] != round)
					continue;
				while (done[i] < round)
					ask(&inherit, family, i, ++done[i], &states, &has[i], &spaces[i]);
				spaces[c] = spaces[i];
				has[c] = has[i];
			}
	for (int i = 0; i < family->n; i++) {
		ask(&inherit, family, i, 0, &states, &has[i], &spaces[i]);
		for (int p = 0; p < SPAN; p++) {
			int known = 0;

			for (int k = 0; k < seen && spaces[i].file[p] > 0; k++)
				known |= all[k] == spaces[i].copy[p];
			if (spaces[i].file[p] > 0 && !known)
				all[seen++] = spaces[i].copy[p];
		}
	}
	while (states) {
		struct inherit_state *next = states->next;

		inherit_state_free(states);
		states = next;
	}
	free(all);
	inherit_free(&inherit);
	return seen;
}

static void expect_contents(const struct family *family, const struct space *spaces)
{
	for (int i = 0; i < family->n; i++) {
		struct space want;

		unmap_all(&want);
		for (size_t m = 0; m < family->memories[i].n_mappings; m++) {
			const Pbeam__Mapping *map = family->memories[i].mappings[m];

			for (int p = page_of(map->start); p < page_of(map->end); p++)
				want.file[p] = 0;
			for (size_t j = 0; j < map->n_pages; j++)
				for (uint64_t k = 0; k < map->pages[j]->count; k++)
					want.file[page_of(map->pages[j]->address) + (int)k] =
						(int64_t)(map->pages[j]->offset + k * PAGE);
		}
		for (int p = 0; p < SPAN; p++)
			if (spaces[i].file[p] != want.file[p])
				fail_msg("process %d, page %d: %ld instead of %ld", i, p,
					 (long)spaces[i].file[p], (long)want.file[p]);
	}
}

static void test_all_alike(void **state)
{
	struct family family = {0};
	struct space spaces[FAMILY_MAX];

	for (int i = 0; i < 5; i++)
		add_pages(add_mapping(&family, add_process(&family, i ? 0 : -1), 0, 20), 0, 20, 0);
	assert_int_equal(make_family(&family, spaces), 20);
	expect_contents(&family, spaces);
	free_family(&family);
}

/* The parent wrote between its forks, and after them. */
static void test_versions(void **state)
{
	struct family family = {0};
	struct space spaces[FAMILY_MAX];
	Pbeam__Mapping *map = add_mapping(&family, add_process(&family, -1), 0, 30);

	add_pages(map, 0, 5, 2);
	add_pages(map, 5, 10, 3);
	add_pages(map, 10, 30, 0);
	for (int i = 0; i < 6; i++) {
		map = add_mapping(&family, add_process(&family, 0), 0, 30);
		add_pages(map, 0, 10, i < 3 ? 1 : 2);
		add_pages(map, 10, 30, 0);
	}
	/* 20 common, 10 of the first three, 10 of the others (five of them also the parent's), 5 its own */
	assert_int_equal(make_family(&family, spaces), 45);
	expect_contents(&family, spaces);
	free_family(&family);
}

/* The pages that the children share are unmapped in the parent, and lie beside its remaining ones. */
static void test_unmapped_in_parent(void **state)
{
	struct family family = {0};
	struct space spaces[FAMILY_MAX];
	Pbeam__Mapping *map = add_mapping(&family, add_process(&family, -1), 10, 30);

	add_pages(map, 10, 30, 0);
	for (int i = 0; i < 3; i++) {
		map = add_mapping(&family, add_process(&family, 0), 5, 30 - i);
		add_pages(map, 5, 30 - i, 0);
	}
	map = add_mapping(&family, add_process(&family, 3), 5, 25);
	add_pages(map, 5, 25, 0);
	assert_int_equal(make_family(&family, spaces), 25);
	expect_contents(&family, spaces);
	free_family(&family);
}

static unsigned next_random(unsigned *seed)
{
	*seed = *seed * 1103515245u + 12345u;
	return *seed >> 16;
}

/* One step of a random history: changes pages of a mapping, or cuts a mapping. */
static void random_change(struct family *family, int i, unsigned *seed, int version)
{
	Pbeam__Memory *memory = &family->memories[i];
	int first = 0, end = 0;

	for (size_t m = 0; m < memory->n_mappings; m++) {
		Pbeam__Mapping *map = memory->mappings[m];

		first = page_of(map->start);
		end = page_of(map->end);
		if (next_random(seed) % 3 == 0 && end - first > 2)
			map->end -= PAGE;
		if (next_random(seed) % 4 == 0 && end - first > 2)
			map->prot = PROT_READ;
	}
	for (size_t m = 0; m < memory->n_mappings; m++) {
		Pbeam__Mapping *map = memory->mappings[m];
		size_t n = 0;

		for (size_t j = 0; j < map->n_pages; j++) {
			Pbeam__Pages *pages = map->pages[j];

			if (pages->address >= map->end || next_random(seed) % 8 == 0) {
				free(pages);
				continue;
			}
			if (next_random(seed) % 4 == 0)
				pages->offset =
					pages->address - BASE + (uint64_t)(version * SPAN + 100) * PAGE;
			map->pages[n++] = pages;
		}
		map->n_pages = n;
	}
}

static void test_random(void **state)
{
	for (unsigned round = 0; round < 3000; round++) {
		struct family family = {0};
		struct space spaces[FAMILY_MAX];
		unsigned seed = round;

		for (int i = 0; i < 8; i++) {
			int from = i ? (int)(next_random(&seed) % (unsigned)i) : -1;

			add_process(&family, from);
			for (int first = 0; first < SPAN; first += 16) {
				Pbeam__Mapping *map;

				if (next_random(&seed) % 6 == 0)
					continue;
				map = add_mapping(&family, i, first, first + 12);
				for (int p = first; p < first + 12; p++)
					add_pages(map, p, p + 1, (int)(next_random(&seed) % 8) / 6);
			}
			random_change(&family, i, &seed, 2 + (int)(next_random(&seed) % 3));
		}
		make_family(&family, spaces);
		expect_contents(&family, spaces);
		free_family(&family);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_all_alike),
		cmocka_unit_test(test_versions),
		cmocka_unit_test(test_unmapped_in_parent),
		cmocka_unit_test(test_random),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
