/*
 * Priority-inheritance futexes.
 *
 * Their word holds the number of the owner. The program stores it when the futex is free (cmpxchg 0 ->
 * tid), and the kernel trusts it. The kernel cannot use a virtual number, and the program cannot use a
 * real one (glibc refuses to unlock a word that does not hold its own number). So where names have
 * diverged these futexes are emulated by plain ones: exclusion is kept, the owner's word is right for
 * both sides, priority is not inherited.
 *
 * The program changes the word by itself only from 0 to its number and from its number to 0.
 * FUTEX_WAITERS prevents both. So a locker first sets that bit atomically (the call is turned into
 * FUTEX_WAKE_OP, which the kernel executes) and is made again. While the bit is set only scips write
 * the word, one at a time under the lock of the name table. The locker then takes a free futex, or
 * waits for the word to change and is made again. Unlocking stores 0 and wakes one waiter, which sets
 * the bit again, so no waiter is forgotten.
 */
#include <errno.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "scip/syscall/call.h"
#include "scip/tracee/regs.h"

enum { PHASE_MARKED = 1, PHASE_WAITED, PHASE_UNLOCKED, PHASE_WOKEN_BY_DEATH };

/* From kernel headers that are not for programs. */
enum {
	OWN_ERESTARTSYS = 512,
	OWN_ERESTARTNOINTR = 513,
	OWN_ERESTARTNOHAND = 514,
	OWN_ERESTART_RESTARTBLOCK = 516
};

static int set_args(struct call *call, const uint64_t args[6])
{
	int r = 0;

	for (unsigned i = 0; i < 6 && r >= 0; i++)
		if (args[i] != call->now[i])
			r = call_set_arg(call, i, args[i]);
	return r < 0 ? r : SYSCALL_WANT_EXIT;
}

/* word |= FUTEX_WAITERS, atomically. The second address is one of scip's where no thread waits. */
static int futex_mark(struct call *call)
{
	const uint32_t zero = 0;
	struct taddr where;
	int r = call_scratch(call, 0, &zero, sizeof(zero), &where);
	uint64_t args[6] = {0,
			    FUTEX_WAKE_OP | (call->args[1] & FUTEX_PRIVATE_FLAG),
			    0,
			    0,
			    call->args[0],
			    (uint32_t)FUTEX_OP((FUTEX_OP_OR | FUTEX_OP_OPARG_SHIFT), 31, FUTEX_OP_CMP_EQ, 1)};

	if (r)
		return r;
	args[0] = where.a;
	call->keep[0] = PHASE_MARKED;
	return set_args(call, args);
}

static int wait_for_change(struct call *call, uint32_t word)
{
	bool realtime =
		(call->args[1] & FUTEX_CMD_MASK) == FUTEX_LOCK_PI || (call->args[1] & FUTEX_CLOCK_REALTIME);
	const uint64_t args[6] = {call->args[0],
				  FUTEX_WAIT_BITSET | (call->args[1] & FUTEX_PRIVATE_FLAG) |
					  (realtime ? FUTEX_CLOCK_REALTIME : 0),
				  word,
				  call->args[3],
				  0,
				  FUTEX_BITSET_MATCH_ANY};

	call->keep[0] = PHASE_WAITED;
	return set_args(call, args);
}

static int futex_lock(struct call *call, bool try)
{
	const uint32_t self = (uint32_t)call->tracee->vtid.n;
	uint32_t word;
	int r;

	if (call_read(call, call->args[0], &word, sizeof(word)) < 0)
		return call_answer(call, -EFAULT);
	if ((word & FUTEX_TID_MASK) == self)
		return call_answer(call, try ? -EAGAIN : -EDEADLK);
	if (!(word & FUTEX_WAITERS))
		return futex_mark(call);
	r = names_lock(call->process->names);
	if (r < 0)
		return r;
	r = call_read(call, call->args[0], &word, sizeof(word));
	if (r == 0 && (word & FUTEX_WAITERS) && !(word & FUTEX_TID_MASK)) {
		word |= self;
		r = call_write(call, call->args[0], &word, sizeof(word));
	}
	names_unlock(call->process->names);
	if (r < 0)
		return call_answer(call, -EFAULT);
	if ((word & FUTEX_TID_MASK) == self)
		return call_answer(call, 0);
	if (!(word & FUTEX_WAITERS))
		return futex_mark(call);
	return try ? call_answer(call, -EAGAIN) : wait_for_change(call, word);
}

static int futex_unlock(struct call *call)
{
	const uint32_t zero = 0;
	const uint64_t args[6] = {call->args[0],
				  FUTEX_WAKE | (call->args[1] & FUTEX_PRIVATE_FLAG),
				  1,
				  call->args[3],
				  call->args[4],
				  call->args[5]};
	uint32_t word, owner;
	int r = names_lock(call->process->names);

	if (r < 0)
		return r;
	r = call_read(call, call->args[0], &word, sizeof(word)) < 0 ? -EFAULT : 0;
	owner = r == 0 ? word & FUTEX_TID_MASK : 0;
	if (r == 0 && owner != (uint32_t)call->tracee->vtid.n && owner != (uint32_t)call->tracee->tid)
		r = -EPERM;
	if (r == 0 && call_write(call, call->args[0], &zero, sizeof(zero)) < 0)
		r = -EFAULT;
	names_unlock(call->process->names);
	if (r < 0)
		return call_answer(call, r);
	call->keep[0] = PHASE_UNLOCKED;
	return set_args(call, args);
}

int enter_futex(struct call *call)
{
	if (names_generation(call->process->names) == 0)
		return SYSCALL_CONTINUE;
	switch ((int)call->args[1] & FUTEX_CMD_MASK) {
	case FUTEX_UNLOCK_PI:
		return futex_unlock(call);
	case FUTEX_TRYLOCK_PI:
		return futex_lock(call, true);
	case FUTEX_WAIT_REQUEUE_PI:
	case FUTEX_CMP_REQUEUE_PI:
		return call_answer(
			call, -ENOSYS); /* answered as by a kernel without these calls; no libc uses them */
	default:
		return futex_lock(call, false);
	}
}

int exit_futex(struct call *call)
{
	switch ((int)call->keep[0]) {
	case PHASE_MARKED:
		return call->rval >= 0 ? CALL_AGAIN : 0;
	case PHASE_WAITED:
		/* the timeout is absolute: the call can be made again, also after a signal handler */
		switch (-call->rval) {
		case 0:
		case EAGAIN:
		case EINTR:
		case OWN_ERESTARTSYS:
		case OWN_ERESTARTNOINTR:
		case OWN_ERESTARTNOHAND:
		case OWN_ERESTART_RESTARTBLOCK:
			return CALL_AGAIN;
		default:
			return 0;
		}
	case PHASE_UNLOCKED:
		return call->rval > 0 ? call_set_rval(call, 0) : 0;
	default:
		return 0;
	}
}

/*
 * Owner words of robust futexes hold the number that the program knows. At a thread's end the kernel
 * looks for the real number, to set FUTEX_OWNER_DIED and wake a waiter, so the words are made real.
 * Futexes with priority inheritance are marked here, and the address of one whose waiter must be woken
 * before the thread ends is returned, else 0. A thread that is killed by a signal is not seen here: its
 * robust futexes stay as they are.
 */
static uint64_t own_robust_futexes(struct call *call, const struct tracee *thread)
{
	struct robust_list_head head;
	uint64_t list = 0, at, inherit;
	size_t len = 0;

	if (thread->vtid.n == thread->tid || syscall(SYS_get_robust_list, thread->tid, &list, &len) < 0 ||
	    !list || call_read(call, list, &head, sizeof(head)) < 0)
		return 0;
	at = (uint64_t)head.list.next & ~1ull;
	inherit = (uint64_t)head.list.next & 1;
	for (int n = 0; n < 2048 && at && at != list; n++) {
		uint64_t word_at = at + (uint64_t)head.futex_offset, next;
		uint32_t word, mine = (uint32_t)thread->vtid.n;

		if (call_read(call, at, &next, sizeof(next)) < 0 ||
		    call_read(call, word_at, &word, sizeof(word)) < 0)
			return 0;
		if ((word & FUTEX_TID_MASK) == mine) {
			word = inherit ? (word & FUTEX_WAITERS) | FUTEX_OWNER_DIED
				       : (word & ~FUTEX_TID_MASK) | (uint32_t)thread->tid;
			if (call_write(call, word_at, &word, sizeof(word)) < 0)
				return 0;
			if (inherit && (word & FUTEX_WAITERS))
				return word_at;
		}
		at = next & ~1ull;
		inherit = next & 1;
	}
	return 0;
}

/* The exit is turned into FUTEX_WAKE first, and then made again. */
static int wake_before_end(struct call *call, uint64_t word_at)
{
	const uint64_t args[6] = {word_at, FUTEX_WAKE, 1, 0, 0, 0};
	int r = regs_set_call(call->tracee, SYS_futex);

	call->keep[0] = PHASE_WOKEN_BY_DEATH;
	return r < 0 ? r : set_args(call, args);
}

int enter_exit(struct call *call)
{
	uint64_t word_at = own_robust_futexes(call, call->tracee);

	return word_at ? wake_before_end(call, word_at) : SYSCALL_CONTINUE;
}

int enter_exit_group(struct call *call)
{
	for (const struct tracee *t = call->process->tracees; t; t = t->next) {
		uint64_t word_at = own_robust_futexes(call, t);

		if (word_at)
			return wake_before_end(call, word_at);
	}
	return SYSCALL_CONTINUE;
}

int exit_exit(struct call *call)
{
	return call->keep[0] == PHASE_WOKEN_BY_DEATH ? CALL_AGAIN : 0;
}
