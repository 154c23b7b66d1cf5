/*
 * The interface between scip and the code that it injects. A leaf: includes none of our headers. Fixed-width
 * types only.
 *
 * The injected code executes system calls. scip writes a batch into an area of memory that both have mapped
 * (a memfd), sets the tracee's instruction pointer to the code and lets it run. The code makes the calls one
 * after the other at native speed and ends with int3, which scip sees as a SIGTRAP stop; the address
 * distinguishes it from a signal. So all decisions stay in scip, and the thousands of calls (mmap, pread,
 * pwrite) that would be slow through ptrace cost no stops.
 *
 * Layout of the area: the code (read, execute) at its start, the batch and its data (read, write) after it.
 * Position independent, no relocations, no libc, no SSE, no use of the tracee's stack: scip restores
 * registers, and the red zone is unchanged.
 */
#ifndef INJECT_ABI_H
#define INJECT_ABI_H

#include <stdint.h>

#define INJECT_ABI_VERSION 1u

enum {
	INJECT_CALL_ANY = 1u << 0,   /* continue after any result (else a negative result ends the batch) */
	INJECT_CALL_EXACT = 1u << 1, /* must return `expect`, else the batch ends */
	INJECT_CALL_FULL = 1u << 2,  /* a pread64/pwrite64 family call (fd, buf, len, off): repeat after short
					counts until len is done; `ret` = len */
	INJECT_CALL_FROM = 1u << 3,  /* args[from_arg] is replaced by the result of call number `from_call`: a
					descriptor that was just opened, for example */
	INJECT_CALL_THREAD =
		1u << 4, /* a clone() of a thread: the child stops in int3 at once, the parent continues */
};

/* One system call: arguments in, return out. */
struct inject_call {
	int64_t nr;
	uint64_t args[6];
	int64_t ret;	    /* out */
	int64_t expect;	    /* with INJECT_CALL_EXACT */
	uint32_t flags;	    /* INJECT_CALL_* */
	uint16_t from_call; /* with INJECT_CALL_FROM; smaller than the number of this call */
	uint16_t from_arg;
};

/* At the start of the area's data part; rdi of the code at entry points to it. */
struct inject_batch {
	uint32_t version; /* INJECT_ABI_VERSION */
	uint32_t ncalls;
	uint32_t done;		 /* out: calls made, the failed one not counted */
	uint32_t failed;	 /* out: 1 if call number `done` failed */
	uint64_t bytes;		 /* out, updated as FULL calls proceed, to show progress */
	uint64_t calls;		 /* address, in the tracee, of ncalls struct inject_call */
	uint64_t trap_action[4]; /* out: the previous action of SIGTRAP (handler, flags, restorer, mask): at
				    int3 the kernel resets SIG_IGN, so scip restores it */
};

_Static_assert(sizeof(struct inject_call) == 80, "inject_call is part of the ABI");
_Static_assert(sizeof(struct inject_batch) == 64, "inject_batch is part of the ABI");

#endif
