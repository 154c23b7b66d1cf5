/*
 * knock_wait4 is written in assembly because its instructions must be known one by one: between the look at
 * knock_noted and the end of the system call a signal must not be lost. The handler compares the interrupted
 * thread's rip with the labels. Not yet in the call: rip is within them. In the call, asleep: the kernel has
 * put rip back to the `syscall` instruction, to restart it after the handler (ERESTARTSYS with SA_RESTART):
 * within them as well. The call done: rip is knock_wait4_end, its result counts. signal(7), "Interruption of
 * system calls and library functions by signal handlers".
 */
#include "scip/tracee/knock.h"

#include <errno.h>
#include <stddef.h>
#include <sys/wait.h>
#include <ucontext.h>

/* rdi, rsi, rdx as the call takes them; rcx the word to look at first. */
long knock_wait4(long pid, int *status, long options, const volatile uint32_t *noted);
extern const char knock_wait4_begin[], knock_wait4_end[], knock_wait4_out[];

__asm__(".pushsection .text\n"
	".p2align 4\n"
	".globl knock_wait4, knock_wait4_begin, knock_wait4_end, knock_wait4_out\n"
	".hidden knock_wait4, knock_wait4_begin, knock_wait4_end, knock_wait4_out\n"
	".type knock_wait4, @function\n"
	"knock_wait4:\n"
	"	endbr64\n"
	"	xorl %r10d, %r10d\n"
	"	movl $61, %eax\n" /* wait4 */
	"knock_wait4_begin:\n"
	"	cmpl $0, (%rcx)\n"
	"	jne knock_wait4_out\n"
	"	syscall\n"
	"knock_wait4_end:\n"
	"	ret\n"
	"knock_wait4_out:\n"
	"	movq $-4, %rax\n" /* EINTR */
	"	ret\n"
	".size knock_wait4, . - knock_wait4\n"
	".popsection\n");

static volatile uint32_t knock_noted;
static void (*volatile knock_answered_by)(int signal);

static void on_knock(int signal, siginfo_t *info, void *context)
{
	greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
	uintptr_t at = (uintptr_t)registers[REG_RIP];
	void (*answer)(int) = knock_answered_by;
	int saved = errno;

	if (answer) {
		answer(signal);
		errno = saved;
		return;
	}
	__atomic_fetch_or(&knock_noted, 1u << signal, __ATOMIC_SEQ_CST);
	if (at >= (uintptr_t)knock_wait4_begin && at < (uintptr_t)knock_wait4_end)
		registers[REG_RIP] = (greg_t)(uintptr_t)knock_wait4_out;
}

void knock_listen(int signal)
{
	struct sigaction action = {.sa_sigaction = on_knock, .sa_flags = SA_SIGINFO | SA_RESTART};

	sigfillset(&action.sa_mask);
	sigaction(signal, &action, NULL);
}

void knock_quiet_children(void)
{
	struct sigaction action = {.sa_handler = SIG_DFL, .sa_flags = SA_NOCLDSTOP};
	sigset_t set;

	sigaction(SIGCHLD, &action, NULL);
	sigemptyset(&set);
	sigaddset(&set, SIGCHLD);
	sigprocmask(SIG_UNBLOCK, &set, NULL);
}

void knock_answer(void (*answer)(int signal))
{
	knock_answered_by = answer;
}

pid_t knock_wait(pid_t pid, int *status)
{
	return (pid_t)knock_wait4(pid, status, __WALL, &knock_noted);
}

uint32_t knock_take(void)
{
	return knock_noted ? __atomic_exchange_n(&knock_noted, 0, __ATOMIC_SEQ_CST) : 0;
}
