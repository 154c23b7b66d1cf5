/*
 * ELF64 as it is on disk, mapped read-only, every offset checked: the file may be anything by now. Both
 * .symtab and .dynsym are looked through; the nearest function at or below the address that reaches to it
 * wins.
 */
#include "pbeamctl/symbol.h"

#include <elf.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"

struct file {
	const uint8_t *bytes;
	size_t size;
};

static const void *at(const struct file *file, uint64_t offset, uint64_t len)
{
	return offset <= file->size && len <= file->size - offset ? file->bytes + offset : NULL;
}

/* The address that a file offset is linked at. */
static bool address_of(const struct file *file, const Elf64_Ehdr *head, uint64_t offset, uint64_t *address)
{
	for (unsigned i = 0; i < head->e_phnum; i++) {
		const Elf64_Phdr *p = at(file, head->e_phoff + (uint64_t)i * sizeof(*p), sizeof(*p));

		if (p && p->p_type == PT_LOAD && offset >= p->p_offset &&
		    offset - p->p_offset < p->p_filesz) {
			*address = p->p_vaddr + (offset - p->p_offset);
			return true;
		}
	}
	return false;
}

static void look(const struct file *file, const Elf64_Shdr *table, const Elf64_Shdr *names, uint64_t address,
		 char *out, size_t size, uint64_t *nearest)
{
	for (uint64_t i = 0; i < table->sh_size / sizeof(Elf64_Sym); i++) {
		const Elf64_Sym *s = at(file, table->sh_offset + i * sizeof(*s), sizeof(*s));
		const char *name;
		size_t room;

		if (!s)
			return;
		if (ELF64_ST_TYPE(s->st_info) != STT_FUNC || s->st_value > address ||
		    s->st_value < *nearest || address - s->st_value >= (s->st_size ? s->st_size : 1) ||
		    s->st_name >= names->sh_size)
			continue;
		name = at(file, names->sh_offset + s->st_name, 1);
		room = names->sh_size - s->st_name;
		if (!name || room > file->size - (size_t)((const uint8_t *)name - file->bytes))
			continue;
		snprintf(out, size, "%.*s+0x%llx", (int)strnlen(name, room < 200 ? room : 200), name,
			 (unsigned long long)(address - s->st_value));
		*nearest = s->st_value;
	}
}

static bool find(const struct file *file, uint64_t offset, char *out, size_t size)
{
	const Elf64_Ehdr *head = at(file, 0, sizeof(*head));
	uint64_t address, nearest = 0;

	if (!head || memcmp(head->e_ident, ELFMAG, SELFMAG) != 0 || head->e_ident[EI_CLASS] != ELFCLASS64 ||
	    !address_of(file, head, offset, &address))
		return false;
	*out = 0;
	for (unsigned i = 0; i < head->e_shnum; i++) {
		const Elf64_Shdr *s = at(file, head->e_shoff + (uint64_t)i * sizeof(*s), sizeof(*s));
		const Elf64_Shdr *names;

		if (!s || (s->sh_type != SHT_SYMTAB && s->sh_type != SHT_DYNSYM) ||
		    s->sh_link >= head->e_shnum)
			continue;
		names = at(file, head->e_shoff + (uint64_t)s->sh_link * sizeof(*s), sizeof(*s));
		if (names)
			look(file, s, names, address, out, size, &nearest);
	}
	for (char *c = out; *c; c++)
		if ((unsigned char)*c < 32 || *c == 127)
			*c = '?';
	return *out != 0;
}

bool symbol_find(const char *path, uint64_t offset, char *out, size_t size)
{
	auto_close int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	struct file file;
	struct stat st;
	bool found;
	void *map;

	if (fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || st.st_size <= 0)
		return false;
	map = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
	if (map == MAP_FAILED)
		return false;
	file = (struct file){map, (size_t)st.st_size};
	found = find(&file, offset, out, size);
	munmap(map, (size_t)st.st_size);
	return found;
}
