/* Chains of images: pages are found in ancestors, and an incomplete chain is refused with the reason. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/io.h"
#include "image/image.h"
#include "image/store.h"
#include "proto/message.h"
#include "tests/unit/unit.h"

enum { PAGES = 300 }; /* more than one chunk */

static char directory[64];

static const char *path_of(unsigned number)
{
	static char path[128];

	snprintf(path, sizeof(path), "%s/%u.ckpt", directory, number);
	return path;
}

static int setup(void **state)
{
	strcpy(directory, "/tmp/pbeam-chain-XXXXXX");
	assert_non_null(mkdtemp(directory));
	return 0;
}

static int teardown(void **state)
{
	for (unsigned i = 1; i < 40; i++)
		unlink(path_of(i));
	return rmdir(directory);
}

static void fill_page(uint8_t *page, unsigned image, unsigned number)
{
	for (unsigned i = 0; i < IMAGE_PAGE; i++)
		page[i] = (uint8_t)(image * 101 + number * 31 + i * 7 + (i >> 8));
}

static Pbeam__Pages *add_run(Pbeam__Mapping *mapping, uint64_t first, uint64_t count)
{
	Pbeam__Pages *run = message_add(mapping, pages, pbeam__pages__descriptor);

	assert_non_null(run);
	run->address = 0x10000 + first * IMAGE_PAGE;
	run->count = count;
	return run;
}

static Pbeam__Mapping *first_mapping(const struct image_reader *reader)
{
	return image_reader_manifest(reader)->processes[0]->memory->mappings[0];
}

/* A test's change to the manifest before it is written. */
typedef void (*spoil_fn)(Pbeam__Manifest *manifest, Pbeam__Pages *last);

/* Writes image `number`. The first half has its own pages, the second half is its parent's run; without a
 * parent all pages are its own. Returns the result of image_pages_in_parent(). */
static int write_link(unsigned number, unsigned parent, spoil_fn spoil)
{
	struct err err = ERR_INIT;
	struct image_reader *reader = NULL;
	struct image_writer *writer;
	Pbeam__Manifest *manifest = message_new(&pbeam__manifest__descriptor);
	Pbeam__Process *process = message_add(manifest, processes, pbeam__process__descriptor);
	Pbeam__Mapping *mapping;
	Pbeam__Pages *run;
	uint64_t own = parent ? PAGES / 2 : PAGES, bytes;
	uint8_t page[IMAGE_PAGE];
	int r = 0;

	process->memory = message_new(&pbeam__memory__descriptor);
	mapping = message_add(process->memory, mappings, pbeam__mapping__descriptor);
	manifest->format = IMAGE_FORMAT;
	process->vpid = 4711;
	assert_int_equal(image_writer_open(&writer, path_of(number), 1, &err), 0);
	run = add_run(mapping, 0, own);
	run->offset = image_arena_take(image_writer_arena(writer), own * IMAGE_PAGE);
	for (unsigned i = 0; i < own; i++) {
		fill_page(page, number, i);
		assert_int_equal(io_pwrite_full(image_writer_fd(writer), page, IMAGE_PAGE,
						(off_t)(run->offset + i * IMAGE_PAGE)),
				 0);
	}
	if (parent) {
		const Pbeam__Mapping *there;

		assert_int_equal(image_reader_open(&reader, path_of(parent), &err), 0);
		there = first_mapping(reader);
		assert_int_equal(image_writer_set_parent(writer, manifest, reader, &err), 0);
		run = add_run(mapping, PAGES / 2, PAGES / 2);
		r = image_pages_in_parent(run, there->pages[there->n_pages - 1],
					  there->n_pages == 1 ? PAGES / 2 : 0);
	}
	if (spoil)
		spoil(manifest, run);
	if (r == 0)
		assert_int_equal(image_writer_commit(writer, manifest, false, &bytes, &err), 0);
	image_writer_close(writer);
	image_reader_close(reader);
	message_free(manifest);
	return r;
}

static int verify(unsigned number, struct err *err)
{
	struct image_reader *reader;
	int r = image_reader_open(&reader, path_of(number), err);

	if (r < 0)
		return r;
	r = image_reader_verify(reader, err);
	image_reader_close(reader);
	return r;
}

static void assert_refused(unsigned number, int r, const char *text)
{
	struct err err = ERR_INIT;

	assert_int_equal(verify(number, &err), r);
	if (!strstr(err.text, text))
		fail_msg("%s", err.text);
}

static void test_pages_of_ancestors(void **state)
{
	struct err err = ERR_INIT;
	struct image_reader *reader;
	uint8_t page[IMAGE_PAGE], expected[IMAGE_PAGE];
	const Pbeam__Mapping *mapping;

	assert_int_equal(write_link(1, 0, NULL), 0);
	assert_int_equal(write_link(2, 1, NULL), 0);
	assert_int_equal(write_link(3, 2, NULL), 0);
	assert_int_equal(verify(3, &err), 0);
	assert_int_equal(image_reader_open(&reader, path_of(3), &err), 0);
	assert_int_equal(image_reader_ancestors(reader), 2);
	mapping = first_mapping(reader);
	assert_int_equal(mapping->n_pages, 2);
	for (unsigned i = 0; i < PAGES; i++) {
		bool own = i < PAGES / 2;
		const Pbeam__Pages *run = mapping->pages[!own];
		uint64_t offset;
		int fd = image_reader_home(reader, run, &offset, &err);

		assert_true(fd >= 0);
		offset += (i - (own ? 0 : PAGES / 2)) * IMAGE_PAGE;
		assert_int_equal(io_pread_full(fd, page, IMAGE_PAGE, (off_t)offset), IMAGE_PAGE);
		fill_page(expected, own ? 3 : 1, i);
		assert_memory_equal(page, expected, IMAGE_PAGE);
	}
	image_reader_close(reader);
}

static void test_places(void **state)
{
	Pbeam__Pages run = PBEAM__PAGES__INIT, again = PBEAM__PAGES__INIT;

	run.offset = 0x123456000;
	image_pages_set_place(&again, image_pages_place(&run));
	assert_memory_equal(&run, &again, sizeof(run));
	assert_int_equal(image_pages_in_parent(&again, &run, 2), 0);
	assert_int_equal(again.ancestor, 1);
	assert_int_equal(again.ancestor_offset, 0x123458000);
	image_pages_set_place(&run, image_pages_place(&again));
	assert_memory_equal(&run, &again, sizeof(run));
}

static void test_missing(void **state)
{
	struct err err = ERR_INIT;
	struct image_reader *reader;

	assert_int_equal(write_link(1, 0, NULL), 0);
	assert_int_equal(write_link(2, 1, NULL), 0);
	unlink(path_of(1));
	assert_refused(2, -ENOENT, "1.ckpt, which is missing; use another checkpoint");
	/* Its manifest can still be read. */
	assert_int_equal(image_reader_open(&reader, path_of(2), &err), 0);
	assert_string_equal(image_reader_manifest(reader)->parent->name, "1.ckpt");
	image_reader_close(reader);
}

static void test_replaced(void **state)
{
	assert_int_equal(write_link(1, 0, NULL), 0);
	assert_int_equal(write_link(2, 1, NULL), 0);
	assert_int_equal(write_link(1, 0, NULL), 0); /* with another creation time */
	assert_refused(2, -EBADMSG, "another checkpoint has that name now");
}

static void test_damaged_parent(void **state)
{
	int fd;

	assert_int_equal(write_link(1, 0, NULL), 0);
	assert_int_equal(write_link(2, 1, NULL), 0);
	fd = open(path_of(1), O_RDWR);
	assert_int_equal(io_pwrite_full(fd, "x", 1, 20480 + 12345), 0);
	close(fd);
	assert_refused(2, -EBADMSG, "1.ckpt is damaged: its ");
}

static void name_itself(Pbeam__Manifest *manifest, Pbeam__Pages *last)
{
	assert_int_equal(message_string(&manifest->parent->name, "2.ckpt"), 0);
}

static void name_grandchild(Pbeam__Manifest *manifest, Pbeam__Pages *last)
{
	assert_int_equal(message_string(&manifest->parent->name, "3.ckpt"), 0);
}

static void test_loop(void **state)
{
	assert_int_equal(write_link(1, 0, NULL), 0);
	assert_int_equal(write_link(2, 1, name_itself), 0);
	assert_refused(2, -ELOOP, "2.ckpt is an ancestor of itself");
	/* A loop of two images: the identity of the second cannot match. */
	assert_int_equal(write_link(2, 1, name_grandchild), 0);
	assert_int_equal(write_link(3, 2, NULL), 0);
	assert_refused(3, -ELOOP, "3.ckpt is an ancestor of itself");
}

static void name_path(Pbeam__Manifest *manifest, Pbeam__Pages *last)
{
	assert_int_equal(message_string(&manifest->parent->name, "../1.ckpt"), 0);
}

static void name_nothing(Pbeam__Manifest *manifest, Pbeam__Pages *last)
{
	message_free(manifest->parent);
	manifest->parent = NULL;
}

static void shorten_identity(Pbeam__Manifest *manifest, Pbeam__Pages *last)
{
	manifest->parent->identity.len--;
}

static void reach_too_far(Pbeam__Manifest *manifest, Pbeam__Pages *last)
{
	last->ancestor = IMAGE_ANCESTORS_MAX + 1;
}

static void reach_grandparent(Pbeam__Manifest *manifest, Pbeam__Pages *last)
{
	last->ancestor = 2;
}

static void reach_outside(Pbeam__Manifest *manifest, Pbeam__Pages *last)
{
	last->ancestor_offset += IMAGE_PAGE;
}

static void reach_half_page(Pbeam__Manifest *manifest, Pbeam__Pages *last)
{
	last->ancestor_offset++;
}

static void have_two_homes(Pbeam__Manifest *manifest, Pbeam__Pages *last)
{
	last->offset = 20480;
}

static void be_partial(Pbeam__Manifest *manifest, Pbeam__Pages *last)
{
	manifest->partial = true;
}

static void test_malformed(void **state)
{
	static const struct {
		spoil_fn spoil;
		const char *text;
	} ways[] = {
		{name_path, "does not name its parent properly"},
		{name_nothing, "pages that no parent has"},
		{shorten_identity, "does not name its parent properly"},
		{reach_too_far, "pages that no parent has"},
		{reach_grandparent, "pages that no parent has"},
		{reach_outside, "pages that no parent has"},
		{reach_half_page, "pages that no parent has"},
		{have_two_homes, "pages that no parent has"},
		{be_partial, "does not name its parent properly"},
	};

	assert_int_equal(write_link(1, 0, NULL), 0);
	for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
		assert_int_equal(write_link(2, 1, ways[i].spoil), 0);
		assert_refused(2, -EBADMSG, ways[i].text);
	}
}

static void test_depth(void **state)
{
	struct err err = ERR_INIT;

	assert_int_equal(write_link(1, 0, NULL), 0);
	for (unsigned i = 2; i <= IMAGE_ANCESTORS_MAX + 1; i++)
		assert_int_equal(write_link(i, i - 1, NULL), 0);
	assert_int_equal(verify(IMAGE_ANCESTORS_MAX + 1, &err), 0);
	assert_int_equal(write_link(IMAGE_ANCESTORS_MAX + 2, IMAGE_ANCESTORS_MAX + 1, NULL), -E2BIG);
}

static void test_without_directory(void **state)
{
	struct err err = ERR_INIT;
	struct image_reader *reader;

	assert_int_equal(write_link(1, 0, NULL), 0);
	assert_int_equal(write_link(2, 1, NULL), 0);
	assert_int_equal(image_reader_open_fd(&reader, open(path_of(2), O_RDONLY), "received", &err), 0);
	assert_int_equal(image_reader_open_chain(reader, &err), -EINVAL);
	assert_non_null(strstr(err.text, "received needs its parent 1.ckpt"));
	image_reader_close(reader);
}

static void test_parent_elsewhere(void **state)
{
	struct err err = ERR_INIT;
	struct image_reader *reader;
	struct image_writer *writer;
	Pbeam__Manifest manifest = PBEAM__MANIFEST__INIT;
	char path[128];

	assert_int_equal(write_link(1, 0, NULL), 0);
	assert_int_equal(image_reader_open(&reader, path_of(1), &err), 0);
	snprintf(path, sizeof(path), "%s-elsewhere.ckpt", directory);
	assert_int_equal(image_writer_open(&writer, path, 1, &err), 0);
	assert_int_equal(image_writer_set_parent(writer, &manifest, reader, &err), -EXDEV);
	image_writer_close(writer);
	image_reader_close(reader);
}

/* An image that another image needs is not removed, nor are its own parents. */
static void test_prune(void **state)
{
	struct err err = ERR_INIT;
	char top[128], store[160];

	snprintf(top, sizeof(top), "%s/state", directory);
	setenv("XDG_STATE_HOME", top, 1);
	snprintf(store, sizeof(store), "%s/pbeam/web", top);
	assert_int_equal(io_mkdirs(store, &err), 0);
	for (unsigned i = 1; i <= 5; i++) {
		char there[200];

		/* 4 needs 2, which needs 1; 3 and 5 need nothing. */
		assert_int_equal(write_link(i, i == 2 ? 1 : i == 4 ? 2 : 0, NULL), 0);
		snprintf(there, sizeof(there), "%s/%u.ckpt", store, i);
		assert_int_equal(link(path_of(i), there), 0);
	}
	for (int keep = 2; keep > 0; keep--) {
		uint32_t *numbers;

		store_prune("web", (uint32_t)keep);
		assert_int_equal(store_list("web", &numbers, &err), keep == 2 ? 4 : 1);
		assert_int_equal(numbers[0], keep == 2 ? 1 : 5);
		if (keep == 2)
			assert_int_equal(numbers[1], 2);
		free(numbers);
	}
	snprintf(store, sizeof(store), "rm -r %s", top);
	assert_int_equal(system(store), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_pages_of_ancestors, setup, teardown),
		cmocka_unit_test(test_places),
		cmocka_unit_test_setup_teardown(test_missing, setup, teardown),
		cmocka_unit_test_setup_teardown(test_replaced, setup, teardown),
		cmocka_unit_test_setup_teardown(test_damaged_parent, setup, teardown),
		cmocka_unit_test_setup_teardown(test_loop, setup, teardown),
		cmocka_unit_test_setup_teardown(test_malformed, setup, teardown),
		cmocka_unit_test_setup_teardown(test_depth, setup, teardown),
		cmocka_unit_test_setup_teardown(test_without_directory, setup, teardown),
		cmocka_unit_test_setup_teardown(test_parent_elsewhere, setup, teardown),
		cmocka_unit_test_setup_teardown(test_prune, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
