/*
 * libFuzzer: the pages of a migration, as its target takes them (scip/precopy/page_receiver.h): whole, zero
 * and compressed pages, differences, and the ends of rounds, for a process and for shared memory. The input
 * is a script (tests/fuzz/help/fuzz_mutate.h).
 */
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "channel/wire.h"
#include "proto/cluster.pb-c.h"
#include "proto/frame.h"
#include "scip/precopy/page_receiver.h"
#include "scip/rebuild/precopied_parts.h"
#include "tests/fuzz/help/fuzz_mutate.h"
#include "tests/fuzz/help/fuzz_place.h"

/* Where the process has memory; the seeds know it. Shared memory has no size before the end, so that a peer
 * with the key may send as much as it likes: not more than FILE_MAX here. */
#define MEMORY 0x10000000ull
enum { VPID = 100, SHARED_ID = 3, MEMORY_SIZE = 1 << 20, FILE_MAX = 8 << 20, SIZE_MAX_TAKEN = 128 << 10 };

static const struct fuzz_kind kinds[] = {
	{PBEAM__CHANNEL_MESSAGE__MIGRATE_PAGES, &pbeam__migrate_pages__descriptor},
	{0, NULL},
	{PBEAM__CHANNEL_MESSAGE__MIGRATE_ROUND, &pbeam__migrate_round__descriptor},
};
enum { KINDS = sizeof(kinds) / sizeof(kinds[0]) };

static pid_t process;

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max, unsigned seed)
{
	return fuzz_mutate_script(kinds, KINDS, data, size, max, seed);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	int ready[2];
	char byte;

	fuzz_place_open(*argc, *argv);
	if (pipe(ready) < 0)
		abort();
	process = fork();
	if (process == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (mmap((void *)(uintptr_t)MEMORY, MEMORY_SIZE,
			 PROT_READ | PROT_WRITE, // NOLINT: a fixed address
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == MAP_FAILED)
			_exit(1);
		(void)!write(ready[1], "", 1);
		for (;;)
			pause();
	}
	if (process < 0 || read(ready[0], &byte, 1) != 1)
		abort();
	close(ready[0]);
	close(ready[1]);
	return 0;
}

static void take_all(struct precopied *precopied, int channel)
{
	struct page_receiver *receiver = page_receiver_new(channel, precopied);
	struct frame frame = {0};
	int r = 0;

	while (receiver && r == 0 && wire_take_any(channel, &frame, NULL) == 0) {
		r = page_receiver_take(receiver, &frame, NULL);
		frame_free(&frame);
	}
	page_receiver_free(receiver);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	Pbeam__Process first = PBEAM__PROCESS__INIT, *list[] = {&first};
	Pbeam__Manifest manifest = PBEAM__MANIFEST__INIT;
	struct made made = {.rpid = process, .sock = -1};
	struct inherit_state *state = calloc(1, sizeof(*state));
	struct precopied_process memory = {.state = state};
	struct precopied_shared shared = {SHARED_ID, memfd_create("fuzz", MFD_CLOEXEC)};
	struct precopied precopied = {.rebuild = {.manifest = &manifest, .made = &made},
				      .processes = &memory,
				      .n = 1,
				      .shared = &shared,
				      .nshared = 1};
	size_t len;
	uint8_t *bytes =
		size <= SIZE_MAX_TAKEN ? fuzz_script_bytes(kinds, KINDS, NULL, data, size, &len) : NULL;
	int ends[2];

	fuzz_place_limit_files(FILE_MAX);
	first.vpid = VPID;
	manifest.processes = list;
	manifest.n_processes = 1;
	pthread_mutex_init(&precopied.lock, NULL);
	if (state && shared.fd >= 0 && bytes && fuzz_place_socket(bytes, len, ends)) {
		take_all(&precopied, ends[1]);
		close(ends[0]);
		close(ends[1]);
	}
	if (state)
		inherit_state_free(state);
	close(shared.fd);
	free(bytes);
	return 0;
}
