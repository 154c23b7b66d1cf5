#include "image/digest.h"
#include "image/hash.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/io.h"

#define READ_ROOM   (256u << 10) /* small enough for the second-level cache */
#define THREADS_MAX 16

int digest_range(int fd, uint64_t offset, uint64_t length, uint8_t out[IMAGE_DIGEST])
{
	/* Not __thread: every process of every job would have a copy, from its first instruction on. */
	auto_free uint8_t *room = malloc(READ_ROOM);
	XXH3_state_t state __attribute__((aligned(64)));
	XXH128_canonical_t canonical;

	if (!room)
		return -ENOMEM;
	XXH3_INITSTATE(&state);
	XXH3_128bits_reset(&state);
	while (length) {
		size_t want = length < READ_ROOM ? (size_t)length : READ_ROOM;
		ssize_t n = io_pread_full(fd, room, want, (off_t)offset);

		if (n < 0)
			return (int)n;
		if ((size_t)n != want)
			return -EIO;
		XXH3_128bits_update(&state, room, want);
		offset += want;
		length -= want;
	}
	XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(&state));
	memcpy(out, canonical.digest, IMAGE_DIGEST);
	return 0;
}

/* ---- on several threads, each of which takes the next piece ---- */

struct digest_work {
	int (*one)(void *arg, uint64_t i);
	void *arg;
	uint64_t n;
	_Atomic uint64_t next;
	_Atomic int code;
};

static void *digest_thread(void *arg)
{
	struct digest_work *work = arg;

	for (;;) {
		uint64_t i = atomic_fetch_add(&work->next, 1);
		int r;

		if (i >= work->n || atomic_load(&work->code) < 0)
			return NULL;
		r = work->one(work->arg, i);
		if (r < 0)
			atomic_store(&work->code, r);
	}
}

static unsigned digest_count_processors(void)
{
	cpu_set_t set;

	if (sched_getaffinity(0, sizeof(set), &set) < 0)
		return 1;
	return (unsigned)CPU_COUNT(&set);
}

int digest_each(uint64_t n, int (*one)(void *arg, uint64_t i), void *arg)
{
	struct digest_work work = {.one = one, .arg = arg, .n = n};
	pthread_t threads[THREADS_MAX];
	unsigned want = digest_count_processors(), have = 0;

	if (want > THREADS_MAX)
		want = THREADS_MAX;
	/* A small file is finished before a thread would have started. */
	if (n <= 4)
		want = 1;
	while (have + 1 < want && pthread_create(&threads[have], NULL, digest_thread, &work) == 0)
		have++;
	digest_thread(&work);
	while (have)
		pthread_join(threads[--have], NULL);
	return atomic_load(&work.code);
}

/* ---- chunks ---- */

struct chunks {
	int fd;
	uint64_t end;
	uint8_t (*digests)[IMAGE_DIGEST];
	const uint8_t (*expected)[IMAGE_DIGEST];
	const uint8_t *done;
	_Atomic int64_t bad; /* the first bad chunk, INT64_MAX if there is none */
};

static int one_chunk(void *arg, uint64_t chunk)
{
	struct chunks *chunks = arg;
	uint64_t offset = chunk * IMAGE_CHUNK;
	uint64_t length = chunks->end - offset < IMAGE_CHUNK ? chunks->end - offset : IMAGE_CHUNK;
	uint8_t digest[IMAGE_DIGEST];
	int r;

	if (chunks->done && chunks->done[chunk])
		return 0;
	r = digest_range(chunks->fd, offset, length, digest);
	if (r < 0)
		return r;
	if (chunks->digests) {
		memcpy(chunks->digests[chunk], digest, IMAGE_DIGEST);
	} else if (memcmp(chunks->expected[chunk], digest, IMAGE_DIGEST) != 0) {
		int64_t lowest = atomic_load(&chunks->bad);

		while ((int64_t)chunk < lowest &&
		       !atomic_compare_exchange_weak(&chunks->bad, &lowest, (int64_t)chunk))
			;
	}
	return 0;
}

int digest_chunks(int fd, uint64_t end, uint8_t (*digests)[IMAGE_DIGEST], const uint8_t *done)
{
	struct chunks chunks = {.fd = fd, .end = end, .digests = digests, .done = done, .bad = INT64_MAX};

	return digest_each((end + IMAGE_CHUNK - 1) / IMAGE_CHUNK, one_chunk, &chunks);
}

int64_t digest_check(int fd, uint64_t end, const uint8_t (*digests)[IMAGE_DIGEST], const uint8_t *skip)
{
	struct chunks chunks = {.fd = fd, .end = end, .expected = digests, .done = skip, .bad = INT64_MAX};
	int r = digest_each((end + IMAGE_CHUNK - 1) / IMAGE_CHUNK, one_chunk, &chunks);

	if (r < 0)
		return r - 1;
	return atomic_load(&chunks.bad) == INT64_MAX ? -1 : atomic_load(&chunks.bad);
}
