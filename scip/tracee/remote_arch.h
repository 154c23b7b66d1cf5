/* How registers make a call, for remote.c and others of this folder; implemented in arch/. */
#ifndef SCIP_TRACEE_REMOTE_ARCH_H
#define SCIP_TRACEE_REMOTE_ARCH_H

#include "scip/tracee/process.h"

/* Of the `syscall` instruction. */
enum { REMOTE_ARCH_INSN_LEN = 2 };

/* False for a thread that runs 32-bit code. */
bool remote_arch_can(const struct user_regs_struct *regs);
/* Finds a `syscall` instruction in the process. The address is remembered but checked each time, since the
 * program may unmap it. -ENOEXEC: there is none. */
must_check int remote_arch_find_insn(struct process *process, struct taddr *insn);
/* Registers that make this call when resumed. */
void remote_arch_set_call(struct user_regs_struct *regs, struct taddr insn, int64_t nr,
			  const uint64_t args[6]);
/* Registers that enter the injected code. */
void remote_arch_set_entry(struct user_regs_struct *regs, struct taddr code, struct taddr stack,
			   struct taddr batch);
/* True for the registers of a call that the kernel will restart on return to user mode. */
bool remote_arch_in_restart(const struct user_regs_struct *regs);
/* Makes such registers those of a thread about to make the call. */
void remote_arch_repeat(struct user_regs_struct *regs);
/* Sets the return value alone. */
must_check int remote_arch_get_ret(const struct tracee *tracee, int64_t *ret);

#endif
