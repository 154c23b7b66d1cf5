/*
 * knock_call is written in assembly because the address of each instruction matters: a signal between the
 * check of knock_noted and the end of the system call must not be lost. The handler compares the interrupted
 * thread's rip with the labels. Before the call, rip is between knock_call_begin and knock_call_end. Asleep
 * in the call, it is there too: the kernel has set rip back to the `syscall` instruction, to restart it after
 * the handler (ERESTARTSYS with SA_RESTART). After the call, rip is knock_call_end and the result counts.
 * signal(7), "Interruption of system calls and library functions by signal handlers".
 */
#include "scip/tracee/knock.h"

#include <errno.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <ucontext.h>

/* System call `number` with four arguments (a fifth and sixth are 0), unless *noted is set. */
long knock_call(long a, void *b, long c, long d, long number, const volatile uint32_t *noted);
extern const char knock_call_begin[], knock_call_end[], knock_call_out[];

__asm__(".pushsection .text\n"
	".p2align 4\n"
	".globl knock_call, knock_call_begin, knock_call_end, knock_call_out\n"
	".hidden knock_call, knock_call_begin, knock_call_end, knock_call_out\n"
	".type knock_call, @function\n"
	"knock_call:\n"
	"	endbr64\n"
	"	movq %r9, %r11\n"
	"	movl %r8d, %eax\n"
	"	movq %rcx, %r10\n"
	"	xorl %r8d, %r8d\n"
	"	xorl %r9d, %r9d\n"
	"knock_call_begin:\n"
	"	cmpl $0, (%r11)\n"
	"	jne knock_call_out\n"
	"	syscall\n"
	"knock_call_end:\n"
	"	ret\n"
	"knock_call_out:\n"
	"	movq $-4, %rax\n" /* EINTR */
	"	ret\n"
	".size knock_call, . - knock_call\n"
	".popsection\n");

static volatile uint32_t knock_noted;

static void on_knock(int signal, siginfo_t *info, void *context)
{
	greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
	uintptr_t at = (uintptr_t)registers[REG_RIP];

	__atomic_fetch_or(&knock_noted, 1u << signal, __ATOMIC_SEQ_CST);
	if (at >= (uintptr_t)knock_call_begin && at < (uintptr_t)knock_call_end)
		registers[REG_RIP] = (greg_t)(uintptr_t)knock_call_out;
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

pid_t knock_wait(pid_t pid, int *status)
{
	return (pid_t)knock_call(pid, status, __WALL, 0, SYS_wait4, &knock_noted);
}

ssize_t knock_receive(int sock, void *data, size_t len)
{
	return knock_call(sock, data, (long)len, 0, SYS_recvfrom, &knock_noted);
}

uint32_t knock_take(void)
{
	return knock_noted ? __atomic_exchange_n(&knock_noted, 0, __ATOMIC_SEQ_CST) : 0;
}
