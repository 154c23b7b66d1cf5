/*
 * Priority-inheritance futexes: the owner's number in the word.
 *
 * The program puts the number it knows there, by itself, when the futex is free. The kernel comes in when it
 * is not, looks for a thread with that number, and later puts real ones there. So a virtual number is made
 * real before the kernel sees it. Afterwards the program's own fast unlock does not recognise the word and
 * calls the kernel, which is right. The word is replaced only if it still holds the same value; an owner that
 * unlocks in the very instant between that look and the write would find its release overwritten. The window
 * is some hundred nanoseconds, on a futex that is contended just then.
 */
#include <linux/futex.h>

#include "scip/syscall/table.h"

int enter_futex(struct call *call)
{
	int op = (int)call->args[1] & FUTEX_CMD_MASK;
	uint64_t at =
		op == FUTEX_WAIT_REQUEUE_PI || op == FUTEX_CMP_REQUEUE_PI ? call->args[4] : call->args[0];
	uint32_t word, again;
	int32_t owner, real;

	if (names_generation(call->process->names) == 0 || call_read(call, at, &word, sizeof(word)) < 0)
		return SYSCALL_CONTINUE;
	owner = (int32_t)(word & FUTEX_TID_MASK);
	real = owner ? call_real(call, owner) : 0;
	if (real == owner || real == NAMES_NOBODY)
		return SYSCALL_CONTINUE;
	/* with waiters the kernel has been here: a number that can be both a name and a real one is then real
	 */
	if ((word & FUTEX_WAITERS) && call_virtual(call, owner) != owner && call_virtual(call, owner) != 0)
		return SYSCALL_CONTINUE;
	if (call_read(call, at, &again, sizeof(again)) < 0 || again != word)
		return SYSCALL_CONTINUE;
	word = (word & ~FUTEX_TID_MASK) | (uint32_t)real;
	if (call_write(call, at, &word, sizeof(word)) < 0)
		return SYSCALL_CONTINUE;
	return SYSCALL_CONTINUE;
}
