/* The image file: its contents are read back, and a changed, missing or added byte is detected. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/io.h"
#include "image/image.h"
#include "tests/unit/unit.h"

#define PAGES 700u /* more than two chunks */

static char directory[64];
static char path[128];

static int setup(void **state)
{
	strcpy(directory, "/tmp/pbeam-image-XXXXXX");
	assert_non_null(mkdtemp(directory));
	snprintf(path, sizeof(path), "%s/1.ckpt", directory);
	return 0;
}

static int teardown(void **state)
{
	unlink(path);
	return rmdir(directory); /* fails if a temporary file was left */
}

static void page_fill(uint8_t *page, unsigned n)
{
	for (unsigned i = 0; i < IMAGE_PAGE; i++)
		page[i] = (uint8_t)(n * 31 + i * 7 + (i >> 8));
}

static uint64_t write_image(uint64_t writer_pages)
{
	struct err err = ERR_INIT;
	struct image_writer *writer;
	uint8_t page[IMAGE_PAGE];
	uint64_t bytes = 0, offset;
	Pbeam__Manifest manifest = PBEAM__MANIFEST__INIT;
	Pbeam__Process process = PBEAM__PROCESS__INIT, *processes[1] = {&process};
	Pbeam__Memory memory = PBEAM__MEMORY__INIT;
	Pbeam__Mapping mapping = PBEAM__MAPPING__INIT, *mappings[1] = {&mapping};
	Pbeam__Pages pages = PBEAM__PAGES__INIT, *list[1] = {&pages};

	assert_int_equal(image_writer_open(&writer, path, 100, &err), 0);
	offset = image_arena_take(image_writer_arena(writer), writer_pages * IMAGE_PAGE);
	for (unsigned i = 0; i < writer_pages; i++) {
		page_fill(page, i);
		assert_int_equal(io_pwrite_full(image_writer_fd(writer), page, IMAGE_PAGE,
						(off_t)(offset + i * IMAGE_PAGE)),
				 0);
	}
	image_arena_written(image_writer_arena(writer), offset, writer_pages * IMAGE_PAGE);
	pages = (Pbeam__Pages){
		.base = pages.base, .address = 0x10000, .count = writer_pages, .offset = offset};
	mapping.pages = list;
	mapping.n_pages = 1;
	memory.mappings = mappings;
	memory.n_mappings = 1;
	process.vpid = 4711;
	process.memory = &memory;
	manifest.format = IMAGE_FORMAT;
	manifest.processes = processes;
	manifest.n_processes = 1;
	assert_int_equal(image_writer_commit(writer, &manifest, true, &bytes, &err), 0);
	image_writer_close(writer);
	return bytes;
}

static int read_and_verify(struct err *err)
{
	struct image_reader *reader;
	int r = image_reader_open(&reader, path, err);

	if (r < 0)
		return r;
	r = image_reader_verify(reader, err);
	image_reader_close(reader);
	return r;
}

static void round_trip(void **state)
{
	struct err err = ERR_INIT;
	struct image_reader *reader;
	uint8_t page[IMAGE_PAGE], expected[IMAGE_PAGE];
	uint64_t bytes = write_image(PAGES);
	const Pbeam__Pages *pages;
	struct stat st;

	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_size, bytes);
	assert_int_equal(st.st_mode & 07777, 0700);
	assert_int_equal(image_reader_open(&reader, path, &err), 0);
	assert_int_equal(image_reader_verify(reader, &err), 0);
	assert_int_equal(image_reader_manifest(reader)->processes[0]->vpid, 4711);
	pages = image_reader_manifest(reader)->processes[0]->memory->mappings[0]->pages[0];
	for (unsigned i = 0; i < PAGES; i++) {
		Pbeam__Extent at = {.base = PROTOBUF_C_MESSAGE_INIT(&pbeam__extent__descriptor),
				    .offset = pages->offset + i * IMAGE_PAGE,
				    .length = IMAGE_PAGE};

		page_fill(expected, i);
		assert_int_equal(image_reader_get(reader, &at, page, &err), 0);
		assert_memory_equal(page, expected, IMAGE_PAGE);
	}
	image_reader_close(reader);
}

static void flipped_bytes(void **state)
{
	struct err err = ERR_INIT;
	uint64_t bytes = write_image(3);
	int fd = open(path, O_RDWR);
	uint8_t byte;

	assert_true(fd >= 0);
	/* Changes every byte of the small parts, and a sample of the rest. */
	for (uint64_t i = 0; i < bytes; i += (i < 2000 || i > IMAGE_PAGE * 5 + 3 * IMAGE_PAGE) ? 1 : 61) {
		assert_int_equal(pread(fd, &byte, 1, (off_t)i), 1);
		byte ^= 0x10;
		assert_int_equal(pwrite(fd, &byte, 1, (off_t)i), 1);
		if (read_and_verify(&err) == 0)
			fail_msg("a flipped bit at %llu was not found", (unsigned long long)i);
		byte ^= 0x10;
		assert_int_equal(pwrite(fd, &byte, 1, (off_t)i), 1);
	}
	assert_int_equal(read_and_verify(&err), 0);
	close(fd);
}

static void missing_and_added_bytes(void **state)
{
	struct err err = ERR_INIT;
	uint64_t bytes = write_image(3);
	int fd = open(path, O_RDWR | O_APPEND);

	assert_true(fd >= 0);
	assert_int_equal(write(fd, "x", 1), 1);
	assert_true(read_and_verify(&err) < 0);
	for (uint64_t cut = bytes; cut > 0; cut -= cut > 97 ? 97 : cut) {
		assert_int_equal(ftruncate(fd, (off_t)(cut - 1)), 0);
		assert_true(read_and_verify(&err) < 0);
	}
	close(fd);
}

static void not_committed(void **state)
{
	struct err err = ERR_INIT;
	struct image_writer *writer;
	uint64_t bytes = write_image(3);

	assert_int_equal(image_writer_open(&writer, path, 100, &err), 0);
	image_arena_take(image_writer_arena(writer), 100);
	image_writer_close(writer);
	assert_int_equal(read_and_verify(&err), 0);
	assert_true(bytes > 0);
}

static void dedup(void **state)
{
	struct err err = ERR_INIT;
	struct image_writer *writer;
	struct image_arena *arena;
	uint8_t page[IMAGE_PAGE];
	uint64_t first[50], again;

	assert_int_equal(image_writer_open(&writer, path, 100, &err), 0);
	assert_int_equal(image_arena_map(image_writer_arena_fd(writer), &arena, &err), 0);
	for (unsigned i = 0; i < 50; i++) {
		page_fill(page, i);
		assert_false(image_arena_dedup(arena, page, &first[i]));
	}
	for (unsigned i = 0; i < 50; i++) {
		page_fill(page, i);
		assert_true(image_arena_dedup(image_writer_arena(writer), page, &again));
		assert_int_equal(again, first[i]);
	}
	image_arena_unmap(arena);
	image_writer_close(writer);
}

static void stub_finds_scip(void **state)
{
	char script[160], command[400];
	FILE *f;

	write_image(3);
	snprintf(script, sizeof(script), "%s/fake", directory);
	f = fopen(script, "w");
	assert_non_null(f);
	fputs("#!/bin/sh\n[ \"$1\" = restore ] && [ \"$2\" = -d ] && [ -f \"$3\" ] && exit 42\nexit 1\n", f);
	fclose(f);
	chmod(script, 0700);
	snprintf(command, sizeof(command), "PBEAM_SCIP=%s %s -d", script, path);
	assert_int_equal(WEXITSTATUS(system(command)), 42);
	unlink(script);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(round_trip, setup, teardown),
		cmocka_unit_test_setup_teardown(flipped_bytes, setup, teardown),
		cmocka_unit_test_setup_teardown(missing_and_added_bytes, setup, teardown),
		cmocka_unit_test_setup_teardown(not_committed, setup, teardown),
		cmocka_unit_test_setup_teardown(stub_finds_scip, setup, teardown),
		cmocka_unit_test_setup_teardown(dedup, setup, teardown),
	};

	alarm(120);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
