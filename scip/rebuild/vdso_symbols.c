#include "scip/rebuild/vdso_symbols.h"

#include <elf.h>
#include <errno.h>
#include <stdbool.h>
#include <string.h>

struct vdso {
	const uint8_t *bytes;
	size_t len;
	Elf64_Ehdr header;
	uint64_t base; /* address of the first byte, by the program headers */
};

/* A range of the vdso, or NULL if it does not contain it. */
static const uint8_t *range_at(const struct vdso *vdso, uint64_t offset, uint64_t size)
{
	return offset <= vdso->len && size <= vdso->len - offset ? vdso->bytes + offset : NULL;
}

static bool read_at(const struct vdso *vdso, void *out, uint64_t offset, size_t size)
{
	const uint8_t *from = range_at(vdso, offset, size);

	if (from)
		memcpy(out, from, size);
	return from != NULL;
}

static bool read_header(struct vdso *vdso)
{
	Elf64_Ehdr *header = &vdso->header;

	return read_at(vdso, header, 0, sizeof(*header)) && !memcmp(header->e_ident, ELFMAG, SELFMAG) &&
	       header->e_ident[EI_CLASS] == ELFCLASS64 && header->e_ident[EI_DATA] == ELFDATA2LSB &&
	       header->e_machine == EM_X86_64 && header->e_phentsize == sizeof(Elf64_Phdr) &&
	       header->e_shentsize == sizeof(Elf64_Shdr);
}

/* Kernels before 3.16 linked the vdso at a high address. */
static bool read_base(struct vdso *vdso)
{
	for (unsigned i = 0; i < vdso->header.e_phnum; i++) {
		Elf64_Phdr program;

		if (!read_at(vdso, &program, vdso->header.e_phoff + i * sizeof(program), sizeof(program)))
			return false;
		if (program.p_type == PT_LOAD) {
			vdso->base = program.p_vaddr - program.p_offset;
			return true;
		}
	}
	return false;
}

static bool read_section(const struct vdso *vdso, unsigned number, Elf64_Shdr *section)
{
	return number < vdso->header.e_shnum &&
	       read_at(vdso, section, vdso->header.e_shoff + number * sizeof(*section), sizeof(*section));
}

static int list_symbols(const struct vdso *vdso, const Elf64_Shdr *symbols, const Elf64_Shdr *strings,
			struct vdso_symbol *out)
{
	const char *names = (const char *)range_at(vdso, strings->sh_offset, strings->sh_size);
	int n = 0;

	if (!names || !range_at(vdso, symbols->sh_offset, symbols->sh_size))
		return -EINVAL;
	for (uint64_t i = 0; i < symbols->sh_size / sizeof(Elf64_Sym) && n < VDSO_SYMBOLS_MAX; i++) {
		Elf64_Sym symbol;

		if (!read_at(vdso, &symbol, symbols->sh_offset + i * sizeof(symbol), sizeof(symbol)))
			return -EINVAL;
		if (ELF64_ST_TYPE(symbol.st_info) != STT_FUNC || symbol.st_shndx == SHN_UNDEF)
			continue;
		if (symbol.st_name >= strings->sh_size ||
		    !memchr(names + symbol.st_name, 0, strings->sh_size - symbol.st_name) ||
		    symbol.st_value - vdso->base >= vdso->len)
			return -EINVAL;
		out[n++] = (struct vdso_symbol){names + symbol.st_name, symbol.st_value - vdso->base};
	}
	return n ? n : -EINVAL;
}

int vdso_symbols_read(const uint8_t *bytes, size_t len, struct vdso_symbol out[VDSO_SYMBOLS_MAX])
{
	struct vdso vdso = {.bytes = bytes, .len = len};
	Elf64_Shdr symbols, strings;

	if (!bytes || !read_header(&vdso) || !read_base(&vdso))
		return -EINVAL;
	for (unsigned i = 0; read_section(&vdso, i, &symbols); i++)
		if (symbols.sh_type == SHT_DYNSYM && read_section(&vdso, symbols.sh_link, &strings))
			return list_symbols(&vdso, &symbols, &strings, out);
	return -EINVAL;
}
