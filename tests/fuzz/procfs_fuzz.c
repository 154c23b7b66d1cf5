/* Parses arbitrary maps and smaps texts. */
#include <stddef.h>
#include <stdint.h>

#include "scip/tracee/procfs.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct procfs_maps maps;
	struct err err = ERR_INIT;

	if (procfs_maps_parse((const char *)data, size, &maps, &err) == 0)
		procfs_maps_free(&maps);
	return 0;
}
