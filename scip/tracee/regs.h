/* Registers of a stopped tracee. The tracee must be in a ptrace stop; -ESRCH if it is not, or is gone. */
#ifndef SCIP_TRACEE_REGS_H
#define SCIP_TRACEE_REGS_H

#include "scip/tracee/process.h"

must_check int regs_get(const struct tracee *tracee, struct user_regs_struct *regs);
must_check int regs_set(const struct tracee *tracee, const struct user_regs_struct *regs);

/* Set one argument, the number or the result of the call at a seccomp or exit stop, by POKEUSER: cheaper
 * than setting all registers. */
must_check int regs_set_call(const struct tracee *tracee, int64_t nr); /* -1: skip the call */
must_check int regs_set_arg(const struct tracee *tracee, unsigned arg, uint64_t value);
must_check int regs_set_ret(const struct tracee *tracee, int64_t value);

/* All arguments of a call in a copy of the registers. */
void regs_unpack_args(const struct user_regs_struct *regs, uint64_t args[6]);
void regs_pack_args(struct user_regs_struct *regs, const uint64_t args[6]);

/* Moves a thread in a restartable sequence (rseq) to the abort handler in `regs`, as the kernel does when
 * it resumes the thread, and clears its rseq_cs pointer. Needed before registers are changed or saved. */
void regs_abort_rseq(const struct tracee *tracee, struct user_regs_struct *regs);

/* Extended state (NT_X86_XSTATE). regs_get_xstate() allocates *buf for the caller to free. */
must_check int regs_get_xstate(const struct tracee *tracee, void **buf, size_t *len);
must_check int regs_set_xstate(const struct tracee *tracee, const void *buf, size_t len);

/* The extended state that the kernel lets programs use: a bit for each component (XCR0). The processor must
 * have XSAVE. */
uint64_t regs_xcr0(void);

#endif
