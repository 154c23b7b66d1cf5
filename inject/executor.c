/*
 * The injected code: makes the system calls of a batch, one after the other, and stops (inject/abi.h).
 *
 * It is entered with rdi pointing to the batch and rsp into our own area, and ends with int3, which scip sees
 * as a SIGTRAP stop with the instruction pointer behind it. It must not be relocated, keep state, use the
 * tracee's stack, thread-local storage or vector registers: it is compiled freestanding, for general
 * registers only, and linked to one flat section (executor.lds) whose first byte is the entry.
 */
#include "inject/abi.h"

#define MINUS_EINTR  (-4)
#define MINUS_EINVAL (-22)

static inline int64_t system_call(int64_t nr, const uint64_t *args)
{
	int64_t ret;
	register uint64_t r10 __asm__("r10") = args[3];
	register uint64_t r8 __asm__("r8") = args[4];
	register uint64_t r9 __asm__("r9") = args[5];

	__asm__ volatile("syscall"
			 : "=a"(ret)
			 : "0"(nr), "D"(args[0]), "S"(args[1]), "d"(args[2]), "r"(r10), "r"(r8), "r"(r9)
			 : "rcx", "r11", "memory");
	return ret;
}

/* A thread that a clone() of ours made begins where its parent is, with the same registers but rax = 0. scip
 * catches it at its first stop, before this instruction; should it ever come here it parks at once and
 * touches nothing. */
static inline int64_t make_thread(int64_t nr, const uint64_t *args)
{
	int64_t ret;
	register uint64_t r10 __asm__("r10") = args[3];
	register uint64_t r8 __asm__("r8") = args[4];
	register uint64_t r9 __asm__("r9") = args[5];

	__asm__ volatile("syscall\n\t"
			 "test %%rax, %%rax\n\t"
			 "jnz 2f\n"
			 "1:\tint3\n\t"
			 "jmp 1b\n"
			 "2:"
			 : "=a"(ret)
			 : "0"(nr), "D"(args[0]), "S"(args[1]), "d"(args[2]), "r"(r10), "r"(r8), "r"(r9)
			 : "rcx", "r11", "memory", "cc");
	return ret;
}

/* (fd, buf, len, off): until all of `len` is done. End of file before that is -EINVAL: the file is not what
 * scip thinks. */
static int64_t full_call(const struct inject_call *call, const uint64_t *args, volatile uint64_t *progress)
{
	uint64_t now[6] = {args[0], args[1], args[2], args[3], 0, 0};

	while (now[2]) {
		int64_t n = system_call(call->nr, now);

		if (n == MINUS_EINTR)
			continue;
		if (n < 0)
			return n;
		if (n == 0)
			return MINUS_EINVAL;
		now[1] += (uint64_t)n;
		now[2] -= (uint64_t)n;
		now[3] += (uint64_t)n;
		*progress += (uint64_t)n;
	}
	return (int64_t)args[2];
}

static int64_t one_call(struct inject_batch *batch, struct inject_call *calls, struct inject_call *call)
{
	uint64_t args[6] = {call->args[0], call->args[1], call->args[2],
			    call->args[3], call->args[4], call->args[5]};

	if ((call->flags & INJECT_CALL_FROM) && call->from_arg < 6)
		args[call->from_arg] = (uint64_t)calls[call->from_call].ret;
	if (call->flags & INJECT_CALL_FULL)
		return full_call(call, args, &batch->bytes);
	if (call->flags & INJECT_CALL_THREAD)
		return make_thread(call->nr, args);
	return system_call(call->nr, args);
}

__attribute__((used)) void inject_run(struct inject_batch *batch);

__attribute__((used)) void inject_run(struct inject_batch *batch)
{
	struct inject_call *calls = (struct inject_call *)batch->calls;
	uint32_t i;

	batch->failed = 0;
	for (i = 0; i < batch->ncalls; i++) {
		struct inject_call *call = &calls[i];

		call->ret = one_call(batch, calls, call);
		if ((call->flags & INJECT_CALL_EXACT)
			    ? call->ret != call->expect
			    : call->ret < 0 && call->ret >= -4095 && !(call->flags & INJECT_CALL_ANY)) {
			batch->failed = 1;
			break;
		}
	}
	batch->done = i;
}

/* The entry: scip has aligned the stack. */
__asm__(".section .text.entry, \"ax\", @progbits\n"
	".globl inject_entry\n"
	"inject_entry:\n"
	"\txor %ebp, %ebp\n"
	"\tcall inject_run\n"
	"1:\tint3\n"
	"\tjmp 1b\n"
	".text\n");
