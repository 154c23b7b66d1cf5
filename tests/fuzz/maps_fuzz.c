/* libFuzzer: the text of /proc/PID/maps and smaps, in which the program chooses the names of mappings. */
#include <stdlib.h>

#include "scip/tracee/procfs.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct procfs_maps maps;
	struct err err = ERR_INIT;

	if (procfs_maps_parse((const char *)data, size, &maps, &err) == 0) {
		for (size_t i = 0; i < maps.n; i++)
			if (maps.v[i].name == NULL || maps.v[i].start > maps.v[i].end)
				abort();
		procfs_maps_free(&maps);
	}
	return 0;
}
