/* Registers of a stopped tracee. The tracee must be in a ptrace stop; -ESRCH if it is not, or is gone. */
#ifndef SCIP_TRACEE_REGS_H
#define SCIP_TRACEE_REGS_H

#include "scip/tracee/process.h"

must_check int regs_get(const struct tracee *tracee, struct user_regs_struct *regs);
must_check int regs_set(const struct tracee *tracee, const struct user_regs_struct *regs);

/* One argument, the number or the return of the call at a seccomp or exit stop, by POKEUSER: cheaper than a
 * whole set. */
must_check int regs_set_call(const struct tracee *tracee, int64_t nr); /* -1: skip the call */
must_check int regs_set_arg(const struct tracee *tracee, unsigned arg, uint64_t value);
must_check int regs_set_ret(const struct tracee *tracee, int64_t value);

/* All arguments of a call in a copy of the registers. */
void regs_unpack_args(const struct user_regs_struct *regs, uint64_t args[6]);
void regs_pack_args(struct user_regs_struct *regs, const uint64_t args[6]);

/* A thread in a restartable sequence (rseq) is moved to the sequence's abort handler in `regs`, as the kernel
 * will do when it resumes it; its rseq_cs pointer is cleared. For whoever changes or saves the registers. */
void regs_abort_rseq(const struct tracee *tracee, struct user_regs_struct *regs);

/* Extended state (NT_X86_XSTATE). `buf` is malloc'd by regs_get_xstate and the caller's. */
must_check int regs_get_xstate(const struct tracee *tracee, void **buf, size_t *len);
must_check int regs_set_xstate(const struct tracee *tracee, const void *buf, size_t len);

#endif
