/*
 * Ends this process after its n-th store to a region of memory. The region is write-protected: a store
 * faults, the handler lets that one instruction write (by single step), and counts it. Exact and repeatable,
 * where a SIGKILL from outside meets the few instructions between two stores hardly ever.
 */
#ifndef TESTS_UNIT_STORE_HELP_H
#define TESTS_UNIT_STORE_HELP_H

#include <signal.h>
#include <stdint.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#define STORE_TRAP_FLAG 0x100 /* of EFLAGS: single step */

static struct {
	void *base;
	size_t len;
	unsigned long left; /* stores until the end */
} store_region;

/* The region is writable at the end: the kernel marks a robust mutex that the process holds. */
static void store_protect(int prot)
{
	if (mprotect(store_region.base, store_region.len, prot) < 0)
		_exit(99);
}

static void store_on_fault(int sig, siginfo_t *info, void *context)
{
	ucontext_t *uc = context;
	const uintptr_t at = (uintptr_t)info->si_addr, base = (uintptr_t)store_region.base;

	if (sig != SIGSEGV || at < base || at >= base + store_region.len)
		_exit(98);
	store_protect(PROT_READ | PROT_WRITE);
	uc->uc_mcontext.gregs[REG_EFL] |= STORE_TRAP_FLAG;
}

static void store_on_step(int sig, siginfo_t *info, void *context)
{
	ucontext_t *uc = context;

	(void)info;
	uc->uc_mcontext.gregs[REG_EFL] &= ~STORE_TRAP_FLAG;
	if (--store_region.left == 0)
		kill(getpid(), sig == SIGTRAP ? SIGKILL : SIGABRT);
	store_protect(PROT_READ);
}

/* SIGKILL for this process after `n` stores. */
static void store_end_after(void *base, size_t len, unsigned long n)
{
	const struct sigaction fault = {.sa_sigaction = store_on_fault, .sa_flags = SA_SIGINFO};
	const struct sigaction step = {.sa_sigaction = store_on_step, .sa_flags = SA_SIGINFO};

	store_region.base = base;
	store_region.len = len;
	store_region.left = n;
	if (sigaction(SIGSEGV, &fault, NULL) < 0 || sigaction(SIGTRAP, &step, NULL) < 0)
		_exit(97);
	store_protect(PROT_READ);
}

/* The process lives on after all. */
static inline void store_free(void)
{
	store_protect(PROT_READ | PROT_WRITE);
	signal(SIGSEGV, SIG_DFL);
	signal(SIGTRAP, SIG_DFL);
}

#endif
