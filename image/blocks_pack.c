/* Files N.blocks: the frame, for reading. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "image/blocks_layout.h"
#include "image/hash.h"
#include "image/image.h"

uint64_t blocks_offset(uint64_t slot)
{
	return (slot + 1) * BLOCKS_SIZE;
}

static int damaged(const char *path, struct err *err)
{
	return err_set(err, -EBADMSG, "%s is damaged; use another checkpoint", path);
}

static int load_table(struct blocks_pack *pack, const char *path, uint64_t size, struct err *err)
{
	struct blocks_tail tail;
	uint64_t at = size - sizeof(tail), bytes;
	XXH128_canonical_t canonical;

	if (size < BLOCKS_SIZE + sizeof(tail) ||
	    io_pread_full(pack->fd, &tail, sizeof(tail), (off_t)at) != sizeof(tail) ||
	    memcmp(tail.magic, BLOCKS_TAIL_MAGIC, sizeof(tail.magic)) != 0 || tail.format != BLOCKS_FORMAT ||
	    tail.digest != XXH3_64bits(&tail, offsetof(struct blocks_tail, digest)) ||
	    tail.n > (size - BLOCKS_SIZE) / BLOCKS_SIZE ||
	    blocks_offset(tail.n) + tail.n * BLOCKS_DIGEST != at)
		return damaged(path, err);
	bytes = tail.n * BLOCKS_DIGEST;
	pack->n = tail.n;
	pack->digests = malloc(bytes + 1);
	if (!pack->digests)
		return err_code(err, -ENOMEM, "read %s", path);
	if (io_pread_full(pack->fd, pack->digests, bytes, (off_t)blocks_offset(tail.n)) != (ssize_t)bytes)
		return damaged(path, err);
	XXH128_canonicalFromHash(&canonical, XXH3_128bits(pack->digests, bytes));
	memcpy(pack->identity, canonical.digest, BLOCKS_DIGEST);
	return memcmp(pack->identity, tail.identity, BLOCKS_DIGEST) ? damaged(path, err) : 0;
}

int blocks_pack_open(struct blocks_pack *pack, const char *path, struct err *err)
{
	struct stat st;
	int r;

	*pack = (struct blocks_pack){.fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK)};
	if (pack->fd < 0)
		return err_sys(err, "open %s, which has contents of large files", path);
	if (fstat(pack->fd, &st) < 0)
		r = err_sys(err, "look at %s", path);
	else if (!S_ISREG(st.st_mode) || flock(pack->fd, LOCK_SH | LOCK_NB) < 0)
		r = err_set(err, -EBUSY, "%s is being written or pruned; try again", path);
	else
		r = load_table(pack, path, (uint64_t)st.st_size, err);
	if (r < 0)
		blocks_pack_close(pack);
	return r;
}

void blocks_pack_close(struct blocks_pack *pack)
{
	if (pack->fd >= 0)
		close(pack->fd);
	pack->fd = -1;
	free(pack->digests);
	pack->digests = NULL;
}

int blocks_check_run(const struct blocks_pack *pack, const Pbeam__Pages *pages)
{
	uint64_t first = pages->ancestor_offset / BLOCKS_SIZE - 1;
	uint64_t end =
		(pages->ancestor_offset + pages->count * IMAGE_PAGE + BLOCKS_SIZE - 1) / BLOCKS_SIZE - 1;
	auto_free uint8_t *room = malloc(BLOCKS_SIZE);

	if (!room)
		return -ENOMEM;
	for (uint64_t slot = first; slot < end; slot++) {
		ssize_t n = io_pread_full(pack->fd, room, BLOCKS_SIZE, (off_t)blocks_offset(slot));
		XXH128_canonical_t canonical;

		if (n < 0)
			return (int)n;
		if (n != BLOCKS_SIZE)
			return false;
		XXH128_canonicalFromHash(&canonical, XXH3_128bits(room, BLOCKS_SIZE));
		if (memcmp(canonical.digest, pack->digests[slot], BLOCKS_DIGEST) != 0)
			return false;
	}
	return true;
}
