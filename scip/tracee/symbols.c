#include "scip/tracee/symbols.h"

#include <elf.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"

/* .symtab and .dynsym: a linker makes no more. */
enum { TABLES_MAX = 2 };

struct symbols {
	const char *image;
	size_t size;
};

static const void *symbols_at(const struct symbols *s, uint64_t offset, uint64_t len)
{
	if (offset > s->size || len > s->size - offset)
		return NULL;
	return s->image + offset;
}

struct symbols *symbols_open(const char *path)
{
	auto_close int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	struct symbols *s;
	struct stat st;
	void *image;

	if (fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || st.st_size < (off_t)sizeof(Elf64_Ehdr))
		return NULL;
	image = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
	if (image == MAP_FAILED)
		return NULL;
	s = malloc(sizeof(*s));
	if (!s || memcmp(image, ELFMAG, SELFMAG) != 0 || ((char *)image)[EI_CLASS] != ELFCLASS64) {
		free(s);
		munmap(image, (size_t)st.st_size);
		return NULL;
	}
	*s = (struct symbols){.image = image, .size = (size_t)st.st_size};
	return s;
}

void symbols_close(struct symbols *symbols)
{
	if (!symbols)
		return;
	munmap((void *)(uintptr_t)symbols->image, symbols->size);
	free(symbols);
}

/* The address that the file's byte is linked at. */
static bool linked_address(const struct symbols *s, uint64_t offset, uint64_t *address)
{
	const Elf64_Ehdr *head = symbols_at(s, 0, sizeof(*head));

	for (unsigned i = 0; head && i < head->e_phnum; i++) {
		Elf64_Phdr p;
		const void *from = symbols_at(s, head->e_phoff + (uint64_t)i * sizeof(p), sizeof(p));

		if (!from)
			return false;
		memcpy(&p, from, sizeof(p));
		if (p.p_type == PT_LOAD && offset >= p.p_offset && offset - p.p_offset < p.p_filesz) {
			*address = p.p_vaddr + (offset - p.p_offset);
			return true;
		}
	}
	return false;
}

/* The nearest function of one symbol table at or below the address. */
static void search_table(const struct symbols *s, const Elf64_Shdr *table, const Elf64_Shdr *strings,
			 uint64_t address, uint64_t *best, const char **name)
{
	const char *text = symbols_at(s, strings->sh_offset, strings->sh_size);
	uint64_t n = table->sh_size / sizeof(Elf64_Sym);

	if (!text || !strings->sh_size || text[strings->sh_size - 1] ||
	    !symbols_at(s, table->sh_offset, table->sh_size))
		return;
	for (uint64_t i = 0; i < n; i++) {
		Elf64_Sym symbol;

		memcpy(&symbol, s->image + table->sh_offset + i * sizeof(symbol), sizeof(symbol));
		if (ELF64_ST_TYPE(symbol.st_info) != STT_FUNC &&
		    ELF64_ST_TYPE(symbol.st_info) != STT_GNU_IFUNC)
			continue;
		if (symbol.st_shndx == SHN_UNDEF || symbol.st_name >= strings->sh_size ||
		    symbol.st_value > address ||
		    (symbol.st_size && address - symbol.st_value >= symbol.st_size))
			continue;
		if (!*name || symbol.st_value > *best) {
			*best = symbol.st_value;
			*name = text + symbol.st_name;
		}
	}
}

bool symbols_find(const struct symbols *symbols, uint64_t offset, const char **name, uint64_t *into)
{
	const Elf64_Ehdr *head = symbols_at(symbols, 0, sizeof(*head));
	uint64_t address, best = 0;
	int tables = 0;

	*name = NULL;
	if (!head || !linked_address(symbols, offset, &address))
		return false;
	for (unsigned i = 0; i < head->e_shnum; i++) {
		Elf64_Shdr table, strings;
		const void *from =
			symbols_at(symbols, head->e_shoff + (uint64_t)i * sizeof(table), sizeof(table));

		if (!from)
			break;
		memcpy(&table, from, sizeof(table));
		if (table.sh_type != SHT_SYMTAB && table.sh_type != SHT_DYNSYM)
			continue;
		from = table.sh_link < head->e_shnum
			       ? symbols_at(symbols,
					    head->e_shoff + (uint64_t)table.sh_link * sizeof(strings),
					    sizeof(strings))
			       : NULL;
		if (!from)
			continue;
		if (++tables > TABLES_MAX)
			break;
		memcpy(&strings, from, sizeof(strings));
		search_table(symbols, &table, &strings, address, &best, name);
	}
	*into = address - best;
	return *name != NULL;
}
