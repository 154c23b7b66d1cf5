/*
 * Allocates room in the file without communication.
 *
 * Offsets come from one atomic counter. The table of pages is open addressing over their 128-bit digests. A
 * scip that is killed between taking a slot and filling it leaves a slot that never becomes ready, so the
 * wait for a slot is short; after that the page is stored again, at the cost of 4 KiB.
 */
#include "image/arena.h"
#include "image/hash.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"

#define SLOT_BITS_MIN 10u
#define SLOT_BITS_MAX 26u
#define PROBES_MAX    64u
#define READY_TURNS   1000u

int image_arena_create(uint64_t expect_pages, int *fd, struct image_arena **out, struct err *err)
{
	auto_close int memfd = memfd_create("pbeam-arena", MFD_CLOEXEC);
	struct image_arena *arena;
	uint32_t bits = SLOT_BITS_MIN;
	uint64_t bytes;

	if (memfd < 0)
		return err_sys(err, "make the arena");
	while (bits < SLOT_BITS_MAX && (UINT64_C(1) << bits) < expect_pages * 2)
		bits++;
	bytes = sizeof(*arena) + (sizeof(struct arena_slot) << bits);
	if (ftruncate(memfd, (off_t)bytes) < 0)
		return err_sys(err, "size the arena");
	arena = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memfd, 0);
	if (arena == MAP_FAILED)
		return err_sys(err, "map the arena");
	arena->magic = ARENA_MAGIC;
	arena->slot_bits = bits;
	arena->bytes = bytes;
	if (getrandom(&arena->seed, sizeof(arena->seed), 0) != (ssize_t)sizeof(arena->seed))
		arena->seed = (uint64_t)getpid();
	atomic_store(&arena->next, IMAGE_DATA_OFFSET);
	*fd = steal_fd(&memfd);
	*out = arena;
	return 0;
}

int image_arena_map(int fd, struct image_arena **out, struct err *err)
{
	struct image_arena *arena;
	struct stat st;

	if (fstat(fd, &st) < 0)
		return err_sys(err, "look at the arena");
	if ((uint64_t)st.st_size < sizeof(*arena))
		return err_set(err, -EINVAL, "the arena is too small");
	arena = mmap(NULL, (size_t)st.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (arena == MAP_FAILED)
		return err_sys(err, "map the arena");
	if (arena->magic != ARENA_MAGIC || arena->bytes != (uint64_t)st.st_size ||
	    arena->slot_bits > SLOT_BITS_MAX ||
	    sizeof(*arena) + (sizeof(struct arena_slot) << arena->slot_bits) != arena->bytes) {
		munmap(arena, (size_t)st.st_size);
		return err_set(err, -EINVAL, "the descriptor is not an arena");
	}
	*out = arena;
	return 0;
}

void image_arena_unmap(struct image_arena *arena)
{
	if (arena)
		munmap(arena, arena->bytes);
}

uint64_t image_arena_take(struct image_arena *arena, uint64_t bytes)
{
	return atomic_fetch_add(&arena->next, (bytes + IMAGE_PAGE - 1) & ~(uint64_t)(IMAGE_PAGE - 1));
}

void image_arena_written(struct image_arena *arena, uint64_t offset, uint64_t bytes)
{
	uint64_t end = offset + ((bytes + IMAGE_PAGE - 1) & ~(uint64_t)(IMAGE_PAGE - 1));

	while (offset < end) {
		uint64_t chunk = offset / IMAGE_CHUNK;
		uint64_t stop = (chunk + 1) * IMAGE_CHUNK;

		if (chunk >= ARENA_CHUNKS_MAX)
			return;
		if (stop > end)
			stop = end;
		atomic_fetch_add(&arena->chunk_bytes[chunk], (uint32_t)(stop - offset));
		offset = stop;
	}
}

/* Waits a moment until the process that took the slot has filled it. False if it does not. */
static bool slot_matches(struct arena_slot *slot, uint64_t high, uint64_t *offset)
{
	for (unsigned turn = 0; turn < READY_TURNS; turn++) {
		uint64_t at = atomic_load_explicit(&slot->offset, memory_order_acquire);

		if (at) {
			*offset = at;
			return atomic_load(&slot->high) == high;
		}
		sched_yield();
	}
	return false;
}

bool image_arena_dedup(struct image_arena *arena, const uint8_t page[IMAGE_PAGE], uint64_t *offset)
{
	XXH128_hash_t digest = XXH3_128bits_withSeed(page, IMAGE_PAGE, arena->seed);
	uint64_t mask = (UINT64_C(1) << arena->slot_bits) - 1;
	uint64_t low = digest.low64 ? digest.low64 : 1;

	for (uint64_t probe = 0; probe < PROBES_MAX; probe++) {
		struct arena_slot *slot = &arena->slots[(low + probe) & mask];
		uint64_t seen = atomic_load(&slot->low);

		if (seen == 0 && atomic_compare_exchange_strong(&slot->low, &seen, low)) {
			*offset = image_arena_take(arena, IMAGE_PAGE);
			atomic_store(&slot->high, digest.high64);
			atomic_store_explicit(&slot->offset, *offset, memory_order_release);
			return false;
		}
		if (seen == low && slot_matches(slot, digest.high64, offset))
			return true;
	}
	*offset = image_arena_take(arena, IMAGE_PAGE);
	return false;
}
