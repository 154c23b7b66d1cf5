/*
 * libFuzzer: a manifest, in an image with right digests, through everything of a restore that needs no
 * tracee: the reader's checks, rebuild_check() (numbers, plan, files, objects), the forecast and the
 * transaction of the files, the objects and shared memory made and finished, and the requests for the fills
 * of all processes.
 *
 * The host, the user and the format are this one's, so that they are not what every input fails for. Paths
 * lie in the fuzzer's directory, and signals go to nobody.
 */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "image/image.h"
#include "image/layout.h"
#include "proto/message.h"
#include "scip/object/object_restore.h"
#include "scip/rebuild/rebuild_parts.h"
#include "tests/fuzz/help/fuzz_image.h"
#include "tests/fuzz/help/fuzz_mutate.h"
#include "tests/fuzz/help/fuzz_place.h"

enum {
	SIZE_MAX_TAKEN = 256 << 10,
	OBJECTS_MAX = 64,
	PAGES = 4,
	DATA_END = IMAGE_DATA_OFFSET + PAGES * IMAGE_PAGE,
	FILE_MAX = 64 << 20
};

static struct names *names;
static struct fill_signs signs;

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max, unsigned seed)
{
	return fuzz_mutate_message(&pbeam__manifest__descriptor, data, size, max, seed);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	const struct rlimit none = {0, 0};

	fuzz_place_open(*argc, *argv);
	setrlimit(RLIMIT_CORE, &none);
	if (names_open(&names, NULL) < 0)
		abort();
	return 0;
}

/* What image_fuzz tries: places outside the file. */
static void keep_extent(Pbeam__Extent *extent)
{
	if (extent->offset < IMAGE_DATA_OFFSET || extent->offset >= DATA_END)
		extent->offset = IMAGE_DATA_OFFSET + extent->offset % (PAGES * IMAGE_PAGE);
	if (extent->length > DATA_END - extent->offset)
		extent->length %= DATA_END - extent->offset;
}

static void keep_pages(Pbeam__Pages *pages)
{
	pages->ancestor = 0;
	pages->ancestor_offset = 0;
	pages->address &= ~(uint64_t)(IMAGE_PAGE - 1);
	pages->offset &= ~(uint64_t)(IMAGE_PAGE - 1);
	if (pages->offset < IMAGE_DATA_OFFSET || pages->offset >= DATA_END)
		pages->offset = IMAGE_DATA_OFFSET + pages->offset % (PAGES * IMAGE_PAGE);
	if (pages->count > (DATA_END - pages->offset) / IMAGE_PAGE)
		pages->count %= (DATA_END - pages->offset) / IMAGE_PAGE + 1;
}

static int keep(void *arg, ProtobufCMessage *message)
{
	if (message->descriptor == &pbeam__object__descriptor)
		((Pbeam__Object *)(void *)message)->owner_vid = 0;
	else if (message->descriptor == &pbeam__extent__descriptor)
		keep_extent((Pbeam__Extent *)(void *)message);
	else if (message->descriptor == &pbeam__pages__descriptor)
		keep_pages((Pbeam__Pages *)(void *)message);
	return 0;
}

/* Sets what would refuse every input. */
static void adopt(Pbeam__Manifest *manifest)
{
	struct utsname name;

	if (!manifest->host)
		manifest->host = message_new(&pbeam__host__descriptor);
	if (!manifest->host || uname(&name) < 0 || message_string(&manifest->host->machine, name.machine) < 0)
		abort();
	free(manifest->host->vdso.data);
	manifest->host->vdso = (ProtobufCBinaryData){0};
	manifest->host->page_size = IMAGE_PAGE;
	manifest->host->xcr0 = 0;
	manifest->uid = geteuid();
	manifest->format = IMAGE_FORMAT;
	(void)!message_walk(&manifest->base, keep, NULL);
	fuzz_place_keep_paths(&manifest->base);
}

/* What is sent to a scip for each process, in all its rounds. */
static void request_fills(struct rebuild *rebuild)
{
	for (int node = 0; node < rebuild->plan.nnodes; node++) {
		const Pbeam__Process *process = rebuild->plan.nodes[node].process;
		const struct inherit_passing *passing = process && (size_t)node < rebuild->plan.inherit.n
								? &rebuild->plan.inherit.passing[node]
								: NULL;
		struct inherit_state *state = NULL, *next;

		if (!process || plan_is_empty(process) || !passing)
			continue;
		for (int round = 1; round <= passing->nrounds + 1; round++) {
			struct inherit_request request;

			next = NULL;
			if (inherit_request(state, process, passing, round > passing->nrounds ? 0 : round,
					    &request, &next) == 0) {
				const size_t len = pbeam__process__get_packed_size(&request.process);
				uint8_t *packed = malloc(len + 1);

				if (packed && pbeam__process__pack(&request.process, packed) != len)
					abort();
				free(packed);
			}
			inherit_request_free(&request);
			if (state)
				inherit_state_free(state);
			state = next;
		}
		if (state)
			inherit_state_free(state);
	}
}

static void make(struct rebuild *rebuild, struct err *err)
{
	struct object_restore *objects = rebuild->objects;
	int r = object_restore_prepare_files(objects, err);

	if (r == 0)
		r = object_restore_make_all(objects, err);
	if (r == 0)
		r = rebuild_shared_make_all(rebuild);
	if (r == 0)
		r = object_restore_put_back(objects, err);
	if (r == 0)
		r = object_restore_finish_all(objects, err);
	if (r == 0)
		r = rebuild_shared_finish(rebuild);
	if (r == 0)
		object_restore_settle(objects);
	else
		object_restore_take_back(objects, err);
}

static void restore(struct image_reader *image)
{
	static const int console[3] = {-1, -1, -1};
	const struct rebuild_options options = {.path = "input",
						.console = console,
						.force = true,
						.keeper_socket = -1,
						.keeper = {getpid()},
						.signs = &signs};
	struct err err = ERR_INIT;
	struct rebuild *rebuild;

	if (rebuild_open(&rebuild, names, image, &options, &err) < 0)
		return;
	if (rebuild_check(rebuild) == 0) {
		request_fills(rebuild);
		make(rebuild, &err);
	}
	(void)!rebuild_undo(rebuild, 0);
	rebuild_close(rebuild);
}

/* As the image of the input, adopted. NULL: not worth trying. */
static struct image_reader *open_image(const uint8_t *data, size_t size)
{
	Pbeam__Manifest *manifest = size <= SIZE_MAX_TAKEN ? pbeam__manifest__unpack(NULL, size, data) : NULL;
	ProtobufCBinaryData packed = {0};
	struct image_reader *image = NULL;
	int fd = -1;

	if (manifest && manifest->n_objects <= OBJECTS_MAX) {
		adopt(manifest);
		if (message_packed(&packed, &manifest->base) == 0)
			fd = fuzz_image(packed.data, packed.len, PAGES);
	}
	message_free(manifest);
	free(packed.data);
	return fd >= 0 && image_reader_open_fd(&image, fd, "input", NULL) == 0 ? image : NULL;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct image_reader *image = open_image(data, size);

	fuzz_place_limit_files(FILE_MAX);
	if (image) {
		restore(image);
		image_reader_close(image);
	}
	fuzz_place_clean();
	return 0;
}
