/* Makes vdsos of other shapes than this kernel's, for tests. */
#ifndef TESTS_TOOLS_VDSO_MAKE_H
#define TESTS_TOOLS_VDSO_MAKE_H

#include <elf.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum {
	VDSO_MAKE_PAGE = 4096,
	VDSO_MAKE_PAGES = 8,
	VDSO_MAKE_FUNCTIONS = 16,
	VDSO_MAKE_ROOM = 48,
	VDSO_MAKE_TEXT = 1024
};

/* A function; code NULL: one that crashes when it is called. */
struct vdso_make_function {
	const char *name;
	const uint8_t *code;
	size_t len;
};

struct vdso_make {
	Elf64_Ehdr header;
	Elf64_Phdr load;
	Elf64_Shdr sections[4]; /* none, symbols, names, text */
	Elf64_Sym symbols[VDSO_MAKE_FUNCTIONS + 1];
	char names[1024];
};

/* Builds a vdso of `pages` pages, with the functions at its end, `step` bytes apart. Returns its length. */
static inline size_t vdso_make(uint8_t *out, unsigned pages, const struct vdso_make_function *functions,
			       unsigned n, unsigned step)
{
	struct vdso_make *make = (struct vdso_make *)(void *)out;
	size_t len = (size_t)pages * VDSO_MAKE_PAGE, names = 1, text = len - VDSO_MAKE_TEXT;

	memset(out, 0, len);
	memcpy(make->header.e_ident, ELFMAG, SELFMAG);
	make->header.e_ident[EI_CLASS] = ELFCLASS64;
	make->header.e_ident[EI_DATA] = ELFDATA2LSB;
	make->header.e_ident[EI_VERSION] = EV_CURRENT;
	make->header.e_type = ET_DYN;
	make->header.e_machine = EM_X86_64;
	make->header.e_version = EV_CURRENT;
	make->header.e_ehsize = sizeof(make->header);
	make->header.e_phoff = offsetof(struct vdso_make, load);
	make->header.e_phentsize = sizeof(Elf64_Phdr);
	make->header.e_phnum = 1;
	make->header.e_shoff = offsetof(struct vdso_make, sections);
	make->header.e_shentsize = sizeof(Elf64_Shdr);
	make->header.e_shnum = 4;
	make->load = (Elf64_Phdr){.p_type = PT_LOAD, .p_flags = PF_R | PF_X, .p_filesz = len, .p_memsz = len};
	for (unsigned i = 0; i < n; i++) {
		uint8_t *code = out + text + i * step;

		memcpy(make->names + names, functions[i].name, strlen(functions[i].name) + 1);
		make->symbols[i + 1] = (Elf64_Sym){.st_name = (Elf64_Word)names,
						   .st_info = ELF64_ST_INFO(STB_GLOBAL, STT_FUNC),
						   .st_shndx = 3,
						   .st_value = text + i * step,
						   .st_size = step};
		names += strlen(functions[i].name) + 1;
		for (unsigned b = 0; b + 1 < step; b += 2)
			memcpy(code + b, "\x0f\x0b", 2); /* ud2 */
		if (functions[i].code)
			memcpy(code, functions[i].code, functions[i].len);
	}
	make->sections[1] = (Elf64_Shdr){.sh_type = SHT_DYNSYM,
					 .sh_offset = offsetof(struct vdso_make, symbols),
					 .sh_size = (n + 1) * sizeof(Elf64_Sym),
					 .sh_link = 2,
					 .sh_entsize = sizeof(Elf64_Sym)};
	make->sections[2] = (Elf64_Shdr){.sh_type = SHT_STRTAB,
					 .sh_offset = offsetof(struct vdso_make, names),
					 .sh_size = sizeof(make->names)};
	make->sections[3] = (Elf64_Shdr){.sh_type = SHT_PROGBITS,
					 .sh_flags = SHF_ALLOC | SHF_EXECINSTR,
					 .sh_offset = text,
					 .sh_size = n * step};
	return len;
}

#endif
