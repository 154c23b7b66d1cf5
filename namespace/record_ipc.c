/* System V objects that a job has created: {kind, real id} in RUNTIME/record/KEEPER.ipc, oldest first. An
 * object that is removed stays in the list; the kernel does not use its id again for a long time. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/io.h"
#include "namespace/record.h"
#include "namespace/record_file.h"

#define ENTRIES_MAX (1u << 24)

struct entry {
	int32_t kind, real;
};

int record_ipc_add(struct rpid keeper, enum names_ipc kind, int32_t real)
{
	const struct entry entry = {(int32_t)kind, real};
	char file[PATH_MAX];
	int r = record_path(file, keeper, "ipc");

	return r < 0 ? r : record_append(file, &entry, sizeof(entry));
}

static int ipc_compare_entries(const void *a, const void *b)
{
	int32_t one = *(const int32_t *)a, other = *(const int32_t *)b;

	return one < other ? -1 : one > other;
}

int record_ipc_list(struct rpid keeper, enum names_ipc kind, int32_t **ids, size_t *n)
{
	auto_free struct entry *entries = NULL;
	char file[PATH_MAX];
	int32_t last = 0;
	size_t len = 0;
	int r = record_path(file, keeper, "ipc");

	*ids = NULL;
	*n = 0;
	if (r == 0)
		r = io_slurp(AT_FDCWD, file, ENTRIES_MAX * sizeof(struct entry), (char **)&entries, &len);
	if (r < 0)
		return r == -ENOENT ? 0 : r;
	*ids = calloc(len / sizeof(*entries) + 1, sizeof(**ids));
	if (!*ids)
		return -ENOMEM;
	for (size_t i = 0; i < len / sizeof(*entries); i++)
		if (entries[i].kind == (int32_t)kind)
			(*ids)[(*n)++] = entries[i].real;
	bytes_sort(*ids, *n, sizeof(**ids), ipc_compare_entries);
	len = *n;
	*n = 0;
	for (size_t i = 0; i < len; i++)
		if (i == 0 || (*ids)[i] != last)
			last = (*ids)[(*n)++] = (*ids)[i];
	return 0;
}
