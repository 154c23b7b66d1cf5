#include "scip/precopy/notes.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "image/hash.h"
#include "scip/precopy/delta.h"

enum { MEMORY_SHARE = 16 }; /* at most this part of the machine's memory holds contents */
#define STORE_MAX (1ull << 30)

struct page_note {
	XXH128_hash_t digest;
	bool sent;
	uint32_t slot; /* of its contents, plus 1; 0: they are not kept */
};

static void *map_lazily(uint64_t bytes)
{
	void *at =
		mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	return at == MAP_FAILED ? NULL : at;
}

void notes_init(struct notes *notes, uint64_t bytes)
{
	notes->n = bytes / DELTA_PAGE;
	notes->v = notes->n ? map_lazily(notes->n * sizeof(*notes->v)) : NULL;
}

void notes_free(struct notes *notes)
{
	if (notes->v)
		munmap(notes->v, notes->n * sizeof(*notes->v));
	notes->v = NULL;
}

void note_store_init(struct note_store *store)
{
	const long pages = sysconf(_SC_AVPHYS_PAGES);
	uint64_t bytes = pages > 0 ? (uint64_t)pages / MEMORY_SHARE * DELTA_PAGE : 0;

	if (bytes > STORE_MAX)
		bytes = STORE_MAX;
	store->used = 0;
	store->pages = bytes ? map_lazily(bytes) : NULL;
	store->room = store->pages ? (uint32_t)(bytes / DELTA_PAGE) : 0;
}

void note_store_free(struct note_store *store)
{
	if (store->pages)
		munmap(store->pages, (uint64_t)store->room * DELTA_PAGE);
	store->pages = NULL;
}

/* Finds or makes room for the page's contents. NULL when the store is full. */
static uint8_t *note_room(struct note_store *store, struct page_note *note)
{
	if (!note->slot && __atomic_load_n(&store->used, __ATOMIC_RELAXED) < store->room) {
		const uint32_t slot = __atomic_fetch_add(&store->used, 1, __ATOMIC_RELAXED);

		if (slot < store->room)
			note->slot = slot + 1;
	}
	return note->slot ? store->pages + (uint64_t)(note->slot - 1) * DELTA_PAGE : NULL;
}

static enum note_verdict compare_contents(uint8_t *before, const void *page, uint8_t *delta, size_t *len)
{
	const int n = delta_make(before, page, delta);

	if (n == 0)
		return NOTE_SAME;
	memcpy(before, page, DELTA_PAGE);
	if (n < 0)
		return NOTE_WHOLE;
	*len = (size_t)n;
	return NOTE_DELTA;
}

enum note_verdict notes_take(struct notes *notes, struct note_store *store, size_t i, const void *page,
			     uint8_t *delta, size_t *len)
{
	struct page_note *note = notes->v && i < notes->n ? &notes->v[i] : NULL;
	XXH128_hash_t digest;
	uint8_t *kept;

	if (!note)
		return NOTE_WHOLE;
	if (note->slot)
		return compare_contents(note_room(store, note), page, delta, len);
	digest = XXH3_128bits(page, DELTA_PAGE);
	if (note->sent && XXH128_isEqual(digest, note->digest))
		return NOTE_SAME;
	note->digest = digest;
	if (note->sent) { /* most likely it will be written again */
		kept = note_room(store, note);
		if (kept)
			memcpy(kept, page, DELTA_PAGE);
	}
	note->sent = true;
	return NOTE_WHOLE;
}
