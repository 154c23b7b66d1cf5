#include "scip/tracee/regs.h"

#include <elf.h>
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/ptrace.h>
#include <sys/uio.h>

#include "scip/tracee/kernel_structs.h"
#include "scip/tracee/memory.h"

/* Enough for everything up to AMX (11,008 bytes on today's processors). */
enum { XSTATE_ROOM = 16384, XSTATE_MAX = 1 << 20 };

int regs_get(const struct tracee *tracee, struct user_regs_struct *regs)
{
	return ptrace(PTRACE_GETREGS, tracee->tid, NULL, regs) < 0 ? -errno : 0;
}

int regs_set(const struct tracee *tracee, const struct user_regs_struct *regs)
{
	return ptrace(PTRACE_SETREGS, tracee->tid, NULL, regs) < 0 ? -errno : 0;
}

static int regs_poke(const struct tracee *tracee, size_t offset, uint64_t value)
{
	return ptrace(PTRACE_POKEUSER, tracee->tid, offset, value) < 0 ? -errno : 0;
}

int regs_set_call(const struct tracee *tracee, int64_t nr)
{
	return regs_poke(tracee, offsetof(struct user_regs_struct, orig_rax), (uint64_t)nr);
}

int regs_set_arg(const struct tracee *tracee, unsigned arg, uint64_t value)
{
	static const size_t offsets[6] = {
		offsetof(struct user_regs_struct, rdi), offsetof(struct user_regs_struct, rsi),
		offsetof(struct user_regs_struct, rdx), offsetof(struct user_regs_struct, r10),
		offsetof(struct user_regs_struct, r8),	offsetof(struct user_regs_struct, r9),
	};

	if (arg >= 6)
		return -EINVAL;
	return regs_poke(tracee, offsets[arg], value);
}

int regs_set_ret(const struct tracee *tracee, int64_t value)
{
	return regs_poke(tracee, offsetof(struct user_regs_struct, rax), (uint64_t)value);
}

struct rseq_section {
	uint32_t version, flags;
	uint64_t start_ip, post_commit_offset, abort_ip;
};
enum { RSEQ_CS_OFFSET = 8 }; /* of rseq_cs in struct rseq */

void regs_abort_rseq(const struct tracee *tracee, struct user_regs_struct *regs)
{
	struct kernel_rseq configuration;
	struct rseq_section section;
	struct taddr pointer;
	uint64_t at, none = 0;

	if ((int64_t)regs->orig_rax >= 0) /* a section makes no system calls */
		return;
	if (ptrace(PTRACE_GET_RSEQ_CONFIGURATION, tracee->tid, sizeof(configuration), &configuration) < 0 ||
	    configuration.address == 0)
		return;
	pointer.a = configuration.address + RSEQ_CS_OFFSET;
	if (memory_read(tracee->process, pointer, &at, sizeof(at)) < 0 || at == 0 ||
	    memory_read(tracee->process, (struct taddr){at}, &section, sizeof(section)) < 0)
		return;
	if (regs->rip - section.start_ip >= section.post_commit_offset)
		return;
	if (memory_write(tracee->process, pointer, &none, sizeof(none)) == 0)
		regs->rip = section.abort_ip;
}

void regs_unpack_args(const struct user_regs_struct *regs, uint64_t args[6])
{
	args[0] = regs->rdi;
	args[1] = regs->rsi;
	args[2] = regs->rdx;
	args[3] = regs->r10;
	args[4] = regs->r8;
	args[5] = regs->r9;
}

void regs_pack_args(struct user_regs_struct *regs, const uint64_t args[6])
{
	regs->rdi = args[0];
	regs->rsi = args[1];
	regs->rdx = args[2];
	regs->r10 = args[3];
	regs->r8 = args[4];
	regs->r9 = args[5];
}

int regs_get_xstate(const struct tracee *tracee, void **buf, size_t *len)
{
	for (size_t room = XSTATE_ROOM; room <= XSTATE_MAX; room *= 2) {
		struct iovec iov = {.iov_base = malloc(room), .iov_len = room};

		if (!iov.iov_base)
			return -ENOMEM;
		if (ptrace(PTRACE_GETREGSET, tracee->tid, NT_X86_XSTATE, &iov) < 0) {
			int code = -errno;

			free(iov.iov_base);
			return code;
		}
		if (iov.iov_len < room) {
			*buf = iov.iov_base;
			*len = iov.iov_len;
			return 0;
		}
		free(iov.iov_base);
	}
	return -E2BIG;
}

int regs_set_xstate(const struct tracee *tracee, const void *buf, size_t len)
{
	struct iovec iov = {.iov_base = (void *)(uintptr_t)buf, .iov_len = len};

	return ptrace(PTRACE_SETREGSET, tracee->tid, NT_X86_XSTATE, &iov) < 0 ? -errno : 0;
}

uint64_t regs_xcr0(void)
{
	uint32_t low, high;

	__asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
	return (uint64_t)high << 32 | low;
}
