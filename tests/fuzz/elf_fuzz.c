/* libFuzzer: ELF files, which may be anything that a program maps: symbols for `pbeamctl stack`, the
 * interpreter of a program that came from another host. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/io.h"
#include "scip/files/files.h"
#include "scip/tracee/symbols.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void find(const char *path, size_t size)
{
	struct symbols *symbols = symbols_open(path);
	const char *name;
	uint64_t into;

	for (size_t at = 0; symbols && at <= size; at += size / 8 + 1)
		if (symbols_find(symbols, at, &name, &into) && strlen(name) > size)
			abort();
	symbols_close(symbols);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char path[40], asked[PATH_MAX];
	int fd = size <= 1 << 20 ? memfd_create("fuzz", MFD_CLOEXEC) : -1;

	if (fd < 0 || io_write_full(fd, data, size) < 0)
		abort();
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	find(path, size);
	if (files_elf_interpreter(fd, asked) && files_elf_set_interpreter(fd, "/lib/other") == 0 &&
	    (!files_elf_interpreter(fd, asked) || strcmp(asked, "/lib/other") != 0))
		abort();
	close(fd);
	return 0;
}
