/* The architecture-specific part of remote calls. */
#include "scip/tracee/remote_arch.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "scip/tracee/map_query.h"
#include "scip/tracee/memory.h"
#include "scip/tracee/procfs.h"

enum {
	USER_CS_64 = 0x33,
	FLAGS_CLEAN = 0x202,
	VDSO_TEXT_MAX = 16384,
	TEXT_CHUNK = 8192,
};

static const unsigned char syscall_bytes[REMOTE_ARCH_INSN_LEN] = {0x0f, 0x05};

bool remote_arch_can(const struct user_regs_struct *regs)
{
	return regs->cs == USER_CS_64;
}

void remote_arch_set_call(struct user_regs_struct *regs, struct taddr insn, int64_t nr,
			  const uint64_t args[6])
{
	regs->rip = insn.a;
	regs->rax = (uint64_t)nr;
	regs->orig_rax = UINT64_MAX; /* no restart of the interrupted call */
	regs->rdi = args[0];
	regs->rsi = args[1];
	regs->rdx = args[2];
	regs->r10 = args[3];
	regs->r8 = args[4];
	regs->r9 = args[5];
	regs->eflags = FLAGS_CLEAN;
}

void remote_arch_set_entry(struct user_regs_struct *regs, struct taddr code, struct taddr stack,
			   struct taddr batch)
{
	regs->rip = code.a;
	regs->rsp = stack.a - sizeof(uint64_t); /* as after a call instruction */
	regs->rdi = batch.a;
	regs->rax = 0;
	regs->orig_rax = UINT64_MAX;
	regs->eflags = FLAGS_CLEAN;
}

bool remote_arch_in_restart(const struct user_regs_struct *regs)
{
	int64_t ret = (int64_t)regs->rax;

	return (int64_t)regs->orig_rax >= 0 && (ret == -512 || ret == -513 || ret == -514 || ret == -516);
}

void remote_arch_repeat(struct user_regs_struct *regs)
{
	regs->rip -= sizeof(syscall_bytes);
	regs->rax = regs->orig_rax;
	regs->orig_rax = UINT64_MAX;
}

int remote_arch_get_ret(const struct tracee *tracee, int64_t *ret)
{
	errno = 0;
	*ret = ptrace(PTRACE_PEEKUSER, tracee->tid, offsetof(struct user_regs_struct, rax), NULL);
	return errno ? -errno : 0;
}

/* Searches [from, to) for the instruction. */
static bool scan_for_syscall(const struct process *process, uint64_t from, uint64_t to, struct taddr *insn)
{
	unsigned char text[TEXT_CHUNK];

	while (from + sizeof(syscall_bytes) <= to) {
		size_t len = to - from < sizeof(text) ? to - from : sizeof(text);
		const unsigned char *hit;

		if (memory_read(process, (struct taddr){from}, text, len) < 0)
			return false;
		hit = memmem(text, len, syscall_bytes, sizeof(syscall_bytes));
		if (hit) {
			insn->a = from + (uint64_t)(hit - text);
			return true;
		}
		from += len - 1; /* it may lie across two chunks */
	}
	return false;
}

static bool can_execute(const struct process *process, struct taddr at)
{
	int prot = map_query_prot(process->pid, at);

	return prot >= 0 && prot & PROT_EXEC;
}

/* The vdso, by the auxiliary vector: cheap, and right too after a restore has moved it. The program may have
 * unmapped it, mapped something else there, or taken the right to execute it. */
static bool find_in_vdso(const struct process *process, struct taddr *insn)
{
	auto_free char *text = NULL;
	char path[64];
	size_t len;

	snprintf(path, sizeof(path), "/proc/%d/auxv", process->pid);
	if (io_slurp(AT_FDCWD, path, 65536, &text, &len) < 0)
		return false;
	for (size_t at = 0; at + sizeof(Elf64_auxv_t) <= len; at += sizeof(Elf64_auxv_t)) {
		Elf64_auxv_t aux;
		char magic[SELFMAG];

		memcpy(&aux, text + at, sizeof(aux));
		if (aux.a_type != AT_SYSINFO_EHDR)
			continue;
		if (memory_read(process, (struct taddr){aux.a_un.a_val}, magic, sizeof(magic)) < 0 ||
		    memcmp(magic, ELFMAG, SELFMAG) != 0 ||
		    !can_execute(process, (struct taddr){aux.a_un.a_val}))
			return false;
		for (uint64_t size = 4096; size <= VDSO_TEXT_MAX; size += 4096)
			if (scan_for_syscall(process, aux.a_un.a_val + size - 4096, aux.a_un.a_val + size,
					     insn))
				return true;
	}
	return false;
}

/* Any executable mapping will do; the bytes need not be an instruction of the program. 0, -ENOEXEC if there
 * is none, or why that is unknown. */
static int find_anywhere(const struct process *process, struct taddr *insn)
{
	struct procfs_maps maps;
	bool found = false;
	int r = procfs_maps_read(process->pid, false, &maps, NULL);

	if (r < 0)
		return r;
	for (size_t i = 0; i < maps.n && !found; i++)
		if ((maps.v[i].prot & PROT_EXEC) && maps.v[i].start < 1ull << 47)
			found = scan_for_syscall(process, maps.v[i].start, maps.v[i].end, insn);
	procfs_maps_free(&maps);
	return found ? 0 : -ENOEXEC;
}

int remote_arch_find_insn(struct process *process, struct taddr *insn)
{
	unsigned char bytes[sizeof(syscall_bytes)];
	int r;

	if (process->syscall_insn.a &&
	    memory_read(process, process->syscall_insn, bytes, sizeof(bytes)) == 0 &&
	    memcmp(bytes, syscall_bytes, sizeof(bytes)) == 0) {
		*insn = process->syscall_insn;
		return 0;
	}
	r = find_in_vdso(process, insn) ? 0 : find_anywhere(process, insn);
	if (r < 0)
		return r;
	process->syscall_insn = *insn;
	return 0;
}
