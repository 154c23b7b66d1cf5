/*
 * The program interpreter of an ELF file (PT_INTERP). The kernel reads its path from the place in the file
 * that the program header names, so another path is appended to the file. The old one remains mapped for
 * ld.so, which uses it as its own name.
 */
#include <elf.h>
#include <errno.h>
#include <string.h>

#include "base/io.h"
#include "scip/files/files.h"

enum { HEADERS_MAX = 128 };

/* Reads the PT_INTERP program header; *at is its offset in the file. */
static bool find_header(int fd, Elf64_Phdr *header, off_t *at)
{
	Elf64_Ehdr elf;

	if (io_pread_full(fd, &elf, sizeof(elf), 0) != (ssize_t)sizeof(elf) ||
	    memcmp(elf.e_ident, ELFMAG, SELFMAG) != 0 || elf.e_ident[EI_CLASS] != ELFCLASS64 ||
	    elf.e_phentsize != sizeof(*header) || elf.e_phoff > INT32_MAX)
		return false;
	for (int i = 0; i < elf.e_phnum && i < HEADERS_MAX; i++) {
		*at = (off_t)elf.e_phoff + i * (off_t)sizeof(*header);
		if (io_pread_full(fd, header, sizeof(*header), *at) != (ssize_t)sizeof(*header))
			return false;
		if (header->p_type == PT_INTERP)
			return true;
	}
	return false;
}

bool files_elf_interpreter(int fd, char out[PATH_MAX])
{
	Elf64_Phdr header;
	off_t at;

	if (!find_header(fd, &header, &at) || header.p_filesz < 2 || header.p_filesz >= PATH_MAX ||
	    header.p_offset > INT64_MAX)
		return false;
	if (io_pread_full(fd, out, header.p_filesz, (off_t)header.p_offset) != (ssize_t)header.p_filesz)
		return false;
	out[header.p_filesz] = 0;
	return out[0] == '/';
}

int files_elf_set_interpreter(int fd, const char *interpreter)
{
	size_t len = strlen(interpreter) + 1;
	Elf64_Phdr header;
	struct stat st;
	off_t at;
	int r;

	if (!find_header(fd, &header, &at))
		return -ENOEXEC;
	if (fstat(fd, &st) < 0)
		return -errno;
	r = io_pwrite_full(fd, interpreter, len, st.st_size);
	header.p_offset = (uint64_t)st.st_size;
	header.p_filesz = header.p_memsz = len;
	return r < 0 ? r : io_pwrite_full(fd, &header, sizeof(header), at);
}
