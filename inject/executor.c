/*
 * The executor of system calls that runs inside a tracee: see abi.h. Freestanding; compiled to a flat binary
 * whose first byte is the entry, without relocations, data or calls out of it (inject/CMakeLists.txt checks).
 * scip enters it by setting the instruction pointer, with rdi = batch and our own stack; it never returns.
 */
#include "inject/abi.h"

enum {
	NR_RT_SIGACTION = 13,
	SIGNAL_TRAP = 5,
	SIGSET_BYTES = 8,
	CODE_EINTR = -4,
	CODE_EIO = -5,
};

#define inlined static inline __attribute__((always_inline))

inlined int64_t executor_call(int64_t nr, const uint64_t *args)
{
	register uint64_t r10 __asm__("r10") = args[3];
	register uint64_t r8 __asm__("r8") = args[4];
	register uint64_t r9 __asm__("r9") = args[5];
	int64_t ret;

	__asm__ volatile("syscall"
			 : "=a"(ret)
			 : "a"(nr), "D"(args[0]), "S"(args[1]), "d"(args[2]), "r"(r10), "r"(r8), "r"(r9)
			 : "rcx", "r11", "memory");
	return ret;
}

/* A clone() whose child shares memory and stack with us, and must write to neither. scip catches it at its
 * first stop, before the int3. */
inlined int64_t call_thread(int64_t nr, const uint64_t *args)
{
	register uint64_t r10 __asm__("r10") = args[3];
	register uint64_t r8 __asm__("r8") = args[4];
	register uint64_t r9 __asm__("r9") = args[5];
	int64_t ret;

	__asm__ volatile("syscall\n\t"
			 "test %%rax, %%rax\n\t"
			 "jnz 2f\n"
			 "1:\tint3\n\t"
			 "jmp 1b\n"
			 "2:"
			 : "=a"(ret)
			 : "a"(nr), "D"(args[0]), "S"(args[1]), "d"(args[2]), "r"(r10), "r"(r8), "r"(r9)
			 : "rcx", "r11", "memory", "cc");
	return ret;
}

/* Repeats (fd, buf, len, off) until `len` is done. Returns the length, the error, or the short count at
 * end of file. */
inlined int64_t call_full(struct inject_batch *batch, int64_t nr, uint64_t *args)
{
	uint64_t done = 0, len = args[2];

	while (done < len) {
		uint64_t part[6] = {args[0], args[1] + done, len - done, args[3] + done, args[4], args[5]};
		int64_t n = executor_call(nr, part);

		if (n == CODE_EINTR)
			continue;
		if (n < 0)
			return n;
		if (n == 0)
			break;
		done += (uint64_t)n;
		batch->bytes += (uint64_t)n;
	}
	return (int64_t)done;
}

/* Makes one call. True if the batch continues. */
inlined int executor_make_calls(struct inject_batch *batch, struct inject_call *calls, uint32_t number)
{
	struct inject_call *c = &calls[number];
	uint64_t args[6] = {c->args[0], c->args[1], c->args[2], c->args[3], c->args[4], c->args[5]};

	if (c->flags & INJECT_CALL_FROM) {
		if (c->from_call >= number || c->from_arg >= 6) {
			c->ret = CODE_EIO;
			return 0;
		}
		args[c->from_arg] = (uint64_t)calls[c->from_call].ret;
	}
	if (c->flags & INJECT_CALL_THREAD)
		c->ret = call_thread(c->nr, args);
	else if (c->flags & INJECT_CALL_FULL)
		c->ret = call_full(batch, c->nr, args);
	else
		c->ret = executor_call(c->nr, args);
	if (c->flags & INJECT_CALL_ANY)
		return 1;
	if (c->flags & INJECT_CALL_EXACT)
		return c->ret == c->expect;
	if (c->flags & INJECT_CALL_FULL)
		return c->ret == (int64_t)args[2];
	return c->ret >= 0 || c->ret < -4095; /* an address may be negative, an error is in -4095..-1 */
}

_Noreturn void inject_entry(struct inject_batch *batch);

__attribute__((section(".text.entry"))) _Noreturn void inject_entry(struct inject_batch *batch)
{
	struct inject_call *calls = (struct inject_call *)batch->calls;
	const uint64_t query[6] = {SIGNAL_TRAP, 0, (uint64_t)batch->trap_action, SIGSET_BYTES, 0, 0};

	executor_call(NR_RT_SIGACTION, query);
	for (uint32_t i = 0; i < batch->ncalls; i++) {
		if (!executor_make_calls(batch, calls, i)) {
			batch->failed = 1;
			break;
		}
		batch->done = i + 1;
	}
	for (;;)
		__asm__ volatile("int3" ::: "memory");
}
