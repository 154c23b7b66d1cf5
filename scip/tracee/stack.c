/*
 * Unwinding with libunwind's remote interface. All data comes from the program's memory: the search
 * table of a module is its PT_GNU_EH_FRAME segment (.eh_frame_hdr), found by the program headers at the
 * start of the module's first mapping. So images are unwound like live processes. For code without
 * tables (JIT, assembly, Go) libunwind guesses by the frame pointer.
 */
#include "scip/tracee/stack.h"

#include <elf.h>
#include <errno.h>
#include <libunwind.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/io.h"
#include "base/text.h"
#include "scip/tracee/memory.h"
#include "scip/tracee/procfs.h"
#include "scip/tracee/regs.h"
#include "scip/tracee/symbols.h"

/* Exported by libunwind for perf and others, but in no header. */
int UNW_OBJ(dwarf_search_unwind_table)(unw_addr_space_t space, unw_word_t ip, unw_dyn_info_t *info,
				       unw_proc_info_t *proc, int need_unwind_info, void *arg);

enum { FRAMES_MAX = 256, PHDRS_MAX = 64, EH_HDR_SIZE = 12, DATAREL_SDATA4 = 0x3b, PCREL_SDATA4 = 0x1b };

struct unwinding {
	const struct stack_program *program;
	const struct user_regs_struct *regs;
};

static const struct stack_mapping *find_mapping(const struct stack_program *program, uint64_t address)
{
	size_t from = 0, to = program->nmappings;

	while (from < to) {
		size_t middle = from + (to - from) / 2;
		const struct stack_mapping *m = &program->mappings[middle];

		if (address < m->start)
			to = middle;
		else if (address >= m->end)
			from = middle + 1;
		else
			return m;
	}
	return NULL;
}

/* The mapping of the module's file header: the nearest below with the same name and offset 0. */
static const struct stack_mapping *module_head(const struct stack_program *program,
					       const struct stack_mapping *m)
{
	for (const struct stack_mapping *at = m; at >= program->mappings; at--)
		if (at->offset == 0 && strcmp(at->name, m->name) == 0)
			return at;
	return NULL;
}

/* Finds the module's .eh_frame_hdr and its load offset. */
static int find_eh_frame_header(const struct stack_program *program, uint64_t head, Elf64_Phdr *found,
				uint64_t *bias)
{
	Elf64_Ehdr elf;
	Elf64_Phdr phdrs[PHDRS_MAX];
	bool have_bias = false, have_table = false;
	unsigned n;

	if (program->read(program->arg, head, &elf, sizeof(elf)) < 0 ||
	    memcmp(elf.e_ident, ELFMAG, SELFMAG) != 0 || elf.e_phentsize != sizeof(phdrs[0]))
		return -ENOEXEC;
	n = elf.e_phnum < PHDRS_MAX ? elf.e_phnum : PHDRS_MAX;
	if (program->read(program->arg, head + elf.e_phoff, phdrs, n * sizeof(phdrs[0])) < 0)
		return -EFAULT;
	for (unsigned i = 0; i < n; i++) {
		if (phdrs[i].p_type == PT_LOAD && !have_bias) {
			*bias = head - (phdrs[i].p_vaddr - phdrs[i].p_offset);
			have_bias = true;
		} else if (phdrs[i].p_type == PT_GNU_EH_FRAME) {
			*found = phdrs[i];
			have_table = true;
		}
	}
	return have_bias && have_table ? 0 : -ENOENT;
}

static int find_proc_info(unw_addr_space_t space, unw_word_t ip, unw_proc_info_t *proc, int need, void *arg)
{
	const struct unwinding *u = arg;
	const struct stack_program *program = u->program;
	const struct stack_mapping *m = find_mapping(program, ip), *head = m ? module_head(program, m) : NULL;
	unsigned char header[EH_HDR_SIZE];
	unw_dyn_info_t info = {.format = UNW_INFO_FORMAT_REMOTE_TABLE};
	Elf64_Phdr table;
	uint64_t bias, where;
	uint32_t count;

	if (!head || !*m->name || find_eh_frame_header(program, head->start, &table, &bias) < 0)
		return -UNW_ENOINFO;
	where = bias + table.p_vaddr;
	/* Version 1, eh_frame pointer and count of four bytes, a sorted table of pairs of four bytes: all
	 * linkers write this form. */
	if (program->read(program->arg, where, header, sizeof(header)) < 0 || header[0] != 1 ||
	    header[1] != PCREL_SDATA4 || header[2] != 0x03 || header[3] != DATAREL_SDATA4)
		return -UNW_ENOINFO;
	memcpy(&count, header + 8, sizeof(count));
	if (count > table.p_memsz / 8)
		return -UNW_ENOINFO;
	info.start_ip = head->start;
	info.end_ip = m->end;
	info.u.rti.segbase = where;
	info.u.rti.table_data = where + EH_HDR_SIZE;
	info.u.rti.table_len = (unw_word_t)count * 8 / sizeof(unw_word_t);
	return UNW_OBJ(dwarf_search_unwind_table)(space, ip, &info, proc, need, arg);
}

static void put_unwind_info(unw_addr_space_t space, unw_proc_info_t *proc, void *arg)
{
}

static int no_dynamic_info(unw_addr_space_t space, unw_word_t *list, void *arg)
{
	return -UNW_ENOINFO;
}

static int access_mem(unw_addr_space_t space, unw_word_t address, unw_word_t *value, int write, void *arg)
{
	const struct unwinding *u = arg;

	if (write || u->program->read(u->program->arg, address, value, sizeof(*value)) < 0)
		return -UNW_EINVAL;
	return 0;
}

static int access_reg(unw_addr_space_t space, unw_regnum_t number, unw_word_t *value, int write, void *arg)
{
	const struct user_regs_struct *r = ((const struct unwinding *)arg)->regs;
	const unsigned long long values[] = {
		[UNW_X86_64_RAX] = r->rax, [UNW_X86_64_RDX] = r->rdx, [UNW_X86_64_RCX] = r->rcx,
		[UNW_X86_64_RBX] = r->rbx, [UNW_X86_64_RSI] = r->rsi, [UNW_X86_64_RDI] = r->rdi,
		[UNW_X86_64_RBP] = r->rbp, [UNW_X86_64_RSP] = r->rsp, [UNW_X86_64_R8] = r->r8,
		[UNW_X86_64_R9] = r->r9,   [UNW_X86_64_R10] = r->r10, [UNW_X86_64_R11] = r->r11,
		[UNW_X86_64_R12] = r->r12, [UNW_X86_64_R13] = r->r13, [UNW_X86_64_R14] = r->r14,
		[UNW_X86_64_R15] = r->r15, [UNW_X86_64_RIP] = r->rip,
	};

	if (write || number < 0 || (size_t)number >= sizeof(values) / sizeof(values[0]))
		return -UNW_EBADREG;
	*value = values[number];
	return 0;
}

static int no_fpreg(unw_addr_space_t space, unw_regnum_t number, unw_fpreg_t *value, int write, void *arg)
{
	return -UNW_EBADREG;
}

static int no_resume(unw_addr_space_t space, unw_cursor_t *cursor, void *arg)
{
	return -UNW_EINVAL;
}

static int no_name(unw_addr_space_t space, unw_word_t address, char *buf, size_t size, unw_word_t *offset,
		   void *arg)
{
	return -UNW_ENOINFO;
}

static unw_accessors_t accessors = {
	.find_proc_info = find_proc_info,
	.put_unwind_info = put_unwind_info,
	.get_dyn_info_list_addr = no_dynamic_info,
	.access_mem = access_mem,
	.access_reg = access_reg,
	.access_fpreg = no_fpreg,
	.resume = no_resume,
	.get_proc_name = no_name,
};

/* `ip` is a return address in all frames but the first; the call precedes it. */
static void write_frame(const struct stack_program *program, unsigned number, uint64_t ip, FILE *out)
{
	uint64_t address = number && ip ? ip - 1 : ip, into = 0;
	const struct stack_mapping *m = find_mapping(program, address);
	struct symbols *symbols = m && m->file ? symbols_open(m->file) : NULL;
	const char *name = NULL;

	fprintf(out, "  #%-3u 0x%016llx ", number, (unsigned long long)ip);
	if (symbols && symbols_find(symbols, address - m->start + m->offset, &name, &into))
		fprintf(out, "%s+0x%llx (%s)\n", text_visible(name),
			(unsigned long long)(into + (ip - address)), text_visible(m->name));
	else if (m && *m->name)
		fprintf(out, "%s+0x%llx\n", text_visible(m->name),
			(unsigned long long)(ip - m->start + m->offset));
	else
		fprintf(out, "?\n");
	symbols_close(symbols);
}

int stack_write_thread(const struct stack_program *program, const struct user_regs_struct *regs, FILE *out)
{
	struct unwinding unwinding = {.program = program, .regs = regs};
	unw_addr_space_t space = unw_create_addr_space(&accessors, 0);
	unw_word_t ip = regs->rip, sp = 0, last_sp;
	unw_cursor_t cursor;
	int more = 0;

	if (!space)
		return -ENOMEM;
	write_frame(program, 0, ip, out);
	if (unw_init_remote(&cursor, space, &unwinding) == 0)
		more = unw_step(&cursor);
	for (unsigned n = 1; n < FRAMES_MAX && more > 0; n++) {
		last_sp = sp;
		if (unw_get_reg(&cursor, UNW_REG_IP, &ip) < 0 || unw_get_reg(&cursor, UNW_REG_SP, &sp) < 0 ||
		    ip == 0 || (n > 1 && sp <= last_sp))
			break;
		write_frame(program, n, ip, out);
		more = unw_step(&cursor);
	}
	unw_destroy_addr_space(space);
	return ferror(out) ? -EIO : 0;
}

static int read_live(void *arg, uint64_t address, void *buf, size_t len)
{
	return memory_read(arg, (struct taddr){address}, buf, len);
}

static int write_tracee(const struct stack_program *program, const struct tracee *tracee, FILE *out)
{
	struct user_regs_struct regs;
	struct procfs_stat stat;
	int code;

	if (procfs_stat_read(tracee->process->pid, tracee->tid, &stat, NULL) < 0)
		stat.comm[0] = 0;
	fprintf(out, "thread %d (%s)\n", tracee->vtid.n ? tracee->vtid.n : tracee->tid,
		text_visible(stat.comm));
	code = tracee->stop == TRACEE_RUNNING ? -ESRCH : regs_get(tracee, &regs);
	if (code < 0) {
		fprintf(out, "  not stopped\n");
		return 0;
	}
	return stack_write_thread(program, &regs, out);
}

int stack_write(struct process *process, FILE *out, struct err *err)
{
	struct stack_program program = {.read = read_live, .arg = process};
	struct stack_mapping *mappings;
	struct procfs_maps maps;
	int code = procfs_maps_read(process->pid, false, &maps, err);

	if (code < 0)
		return code;
	mappings = calloc(maps.n + 1, sizeof(*mappings));
	if (!mappings) {
		procfs_maps_free(&maps);
		return err_set(err, -ENOMEM, "no memory");
	}
	for (size_t i = 0; i < maps.n; i++) {
		const struct procfs_map *m = &maps.v[i];

		mappings[i] = (struct stack_mapping){
			.start = m->start,
			.end = m->end,
			.offset = m->offset,
			.name = m->name,
			.file = m->name[0] == '/' && !m->deleted ? m->name : NULL,
		};
	}
	program.mappings = mappings;
	program.nmappings = maps.n;
	for (const struct tracee *t = process->tracees; t && code == 0; t = t->next)
		if (t->stop != TRACEE_EXITED)
			code = write_tracee(&program, t, out);
	free(mappings);
	procfs_maps_free(&maps);
	return code < 0 ? err_code(err, code, "write the stacks of process %d", process->pid) : 0;
}
