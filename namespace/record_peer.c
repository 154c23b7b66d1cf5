/* The peers that restored UNIX connections report (SO_PEERCRED): {inode of the socket, virtual number} in
 * RUNTIME/record/KEEPER.peers. The kernel reports the process that made the connection again. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "namespace/record.h"
#include "namespace/record_file.h"

#define ENTRIES_MAX (1u << 20)

struct entry {
	uint64_t ino;
	int32_t vpid, reserved;
};

int record_peer_add(struct rpid keeper, uint64_t ino, struct vpid peer)
{
	const struct entry entry = {.ino = ino, .vpid = peer.n};
	char file[PATH_MAX];
	int r = record_path(file, keeper, "peers");

	return r < 0 ? r : record_append(file, &entry, sizeof(entry));
}

struct vpid record_peer_find(struct rpid keeper, uint64_t ino)
{
	auto_free struct entry *entries = NULL;
	struct vpid found = {0};
	char file[PATH_MAX];
	size_t len;

	if (record_path(file, keeper, "peers") < 0 ||
	    io_slurp(AT_FDCWD, file, ENTRIES_MAX * sizeof(struct entry), (char **)&entries, &len) < 0)
		return found;
	for (size_t i = 0; i < len / sizeof(*entries); i++)
		if (entries[i].ino == ino)
			found.n = entries[i].vpid; /* the last entry counts */
	return found;
}

void record_peer_forget(struct rpid keeper)
{
	char file[PATH_MAX];

	if (record_path(file, keeper, "peers") == 0)
		unlink(file);
}
