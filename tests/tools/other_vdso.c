/*
 * Copies an image as if it had been made on a kernel with another vdso.
 *
 *     other_vdso build|shape IMAGE COPY
 *
 * build: another build of the same source, whose functions are at the same places.
 * shape: one page instead of two, other places, functions that crash unless they are bridged, two that no
 * kernel has, and without some that this kernel has. The program has to look the functions up again.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "image/image.h"
#include "proto/message.h"
#include "tests/tools/vdso_make.h"

static const struct vdso_make_function SHAPE[] = {
	{"__vdso_time", NULL, 0},
	{"__vdso_gettimeofday", NULL, 0},
	{"__vdso_from_future", NULL, 0},
	{"__vdso_clock_gettime", NULL, 0},
	{"__vdso_getcpu", NULL, 0},
	{"__vdso_clock_getres", NULL, 0},
	{"__vdso_sgx_enter_enclave", NULL, 0},
};

struct copy {
	struct image_reader *from;
	struct image_writer *to;
	struct err *err;
};

static int copy_range(const struct copy *copy, uint64_t offset, uint64_t length, uint64_t to)
{
	uint8_t contents[IMAGE_PAGE];

	for (uint64_t done = 0; done < length;) {
		size_t len = length - done < sizeof(contents) ? length - done : sizeof(contents);
		int r;

		if (io_pread_full(image_reader_fd(copy->from), contents, len, (off_t)(offset + done)) !=
		    (ssize_t)len)
			return -EIO;
		r = io_pwrite_full(image_writer_fd(copy->to), contents, len, (off_t)(to + done));
		if (r < 0)
			return r;
		done += len;
	}
	image_arena_written(image_writer_arena(copy->to), to, length);
	return 0;
}

static int copy_one(void *arg, ProtobufCMessage *message)
{
	const struct copy *copy = arg;
	bool pages = message->descriptor == &pbeam__pages__descriptor;
	uint64_t *offset, length, to;

	if (!pages && message->descriptor != &pbeam__extent__descriptor)
		return 0;
	offset = pages ? &((Pbeam__Pages *)(void *)message)->offset
		       : &((Pbeam__Extent *)(void *)message)->offset;
	length = pages ? ((Pbeam__Pages *)(void *)message)->count * IMAGE_PAGE
		       : ((Pbeam__Extent *)(void *)message)->length;
	if (!length)
		return 0;
	to = image_arena_take(image_writer_arena(copy->to), length);
	if (copy_range(copy, *offset, length, to) < 0)
		return -EIO;
	*offset = to;
	return 0;
}

/* Another build: its text has no data in the comment section that follows it. */
static int other_build(Pbeam__Manifest *manifest)
{
	ProtobufCBinaryData *vdso = &manifest->host->vdso;
	uint8_t *comment = vdso->len ? memmem(vdso->data, vdso->len, "GCC", 3) : NULL;

	if (!comment)
		return -ENOENT;
	memcpy(comment, "gcc", 3);
	return 0;
}

static int other_shape(Pbeam__Manifest *manifest)
{
	enum { FUNCTIONS = sizeof(SHAPE) / sizeof(SHAPE[0]) };
	static uint8_t vdso[VDSO_MAKE_PAGES * VDSO_MAKE_PAGE];
	size_t len = vdso_make(vdso, 1, SHAPE, FUNCTIONS, VDSO_MAKE_ROOM);

	for (size_t i = 0; i < manifest->n_processes; i++) {
		Pbeam__Memory *memory = manifest->processes[i]->memory;

		for (size_t m = 0; memory && m < memory->n_mappings; m++)
			if (memory->mappings[m]->kind == PBEAM__MAPPING__KIND__VDSO)
				memory->mappings[m]->end = memory->mappings[m]->start + len;
	}
	return message_bytes(&manifest->host->vdso, vdso, len);
}

int main(int argc, char **argv)
{
	struct err err = ERR_INIT;
	struct copy copy = {.err = &err};
	Pbeam__Manifest *manifest;
	uint64_t bytes;
	int r;

	if (argc != 4 || (strcmp(argv[1], "build") != 0 && strcmp(argv[1], "shape") != 0)) {
		fprintf(stderr, "usage: other_vdso build|shape IMAGE COPY\n");
		return 2;
	}
	r = image_reader_open(&copy.from, argv[2], &err);
	if (r == 0)
		r = image_reader_verify(copy.from, &err);
	if (r == 0)
		r = image_writer_open(&copy.to, argv[3], 1 << 16, &err);
	if (r == 0) {
		manifest = (Pbeam__Manifest *)(uintptr_t)image_reader_manifest(copy.from);
		r = message_walk(&manifest->base, copy_one, &copy);
		if (r == 0)
			r = !strcmp(argv[1], "build") ? other_build(manifest) : other_shape(manifest);
		if (r == 0)
			r = image_writer_commit(copy.to, manifest, false, &bytes, &err);
	}
	image_writer_close(copy.to);
	image_reader_close(copy.from);
	if (r < 0)
		fprintf(stderr, "other_vdso: %s (%d)\n", err.text, r);
	return r < 0;
}
