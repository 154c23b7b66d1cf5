/*
 * The program at the start of every image: ./FILE runs `scip restore FILE`. No libc: it must be small and run
 * anywhere. It looks for scip in $PBEAM_SCIP, at the path of the scip that wrote the image, and along $PATH.
 */
#include "image/layout.h"

#define NR_READ	    0
#define NR_WRITE    1
#define NR_OPEN	    2
#define NR_PREAD    17
#define NR_EXECVE   59
#define NR_EXIT	    60
#define NR_READLINK 89
#define PATH_ROOM   4096

static long stub_call(long nr, long a, long b, long c, long d)
{
	long ret;
	register long r10 __asm__("r10") = d;

	__asm__ volatile("syscall"
			 : "=a"(ret)
			 : "0"(nr), "D"(a), "S"(b), "d"(c), "r"(r10)
			 : "rcx", "r11", "memory");
	return ret;
}

static unsigned long stub_length(const char *s)
{
	unsigned long n = 0;

	while (s[n])
		n++;
	return n;
}

static void stub_print(const char *s)
{
	stub_call(NR_WRITE, 2, (long)s, (long)stub_length(s), 0);
}

static const char *stub_variable(char **envp, const char *name)
{
	unsigned long n = stub_length(name);

	for (; *envp; envp++) {
		unsigned long i = 0;

		while (i < n && (*envp)[i] == name[i])
			i++;
		if (i == n && (*envp)[n] == '=')
			return *envp + n + 1;
	}
	return 0;
}

/* Tries DIR/scip for every DIR of a colon-separated list. Returns only if none could be executed. */
static void try_path(const char *list, char **argv, char **envp)
{
	static char candidate[PATH_ROOM];

	while (list && *list) {
		unsigned long n = 0;

		while (list[n] && list[n] != ':' && n < sizeof(candidate) - 8) {
			candidate[n] = list[n];
			n++;
		}
		for (const char *tail = "/scip"; *tail; tail++)
			candidate[n + (unsigned long)(tail - "/scip")] = *tail;
		candidate[n + 5] = 0;
		stub_call(NR_EXECVE, (long)candidate, (long)argv, (long)envp, 0);
		while (*list && *list != ':')
			list++;
		if (*list)
			list++;
	}
}

__attribute__((noreturn, used)) void stub_main(long *stack);

void stub_main(long *stack)
{
	static struct image_super super;
	static char self[PATH_ROOM];
	static char *arguments[64];
	long argc = stack[0];
	char **argv = (char **)(stack + 1), **envp = argv + argc + 1;
	const char *chosen = stub_variable(envp, "PBEAM_SCIP");
	long n = stub_call(NR_READLINK, (long)"/proc/self/exe", (long)self, sizeof(self) - 1, 0);
	long fd = stub_call(NR_OPEN, (long)"/proc/self/exe", 0, 0, 0);
	long m = 0;

	self[n > 0 ? n : 0] = 0;
	arguments[m++] = (char *)"scip";
	arguments[m++] = (char *)"restore";
	for (long i = 1; i < argc && m < 62; i++)
		arguments[m++] = argv[i];
	arguments[m++] = self;
	arguments[m] = 0;
	if (chosen)
		stub_call(NR_EXECVE, (long)chosen, (long)arguments, (long)envp, 0);
	if (fd >= 0 &&
	    stub_call(NR_PREAD, fd, (long)&super, sizeof(super), IMAGE_SUPER_OFFSET) == (long)sizeof(super)) {
		super.scip[sizeof(super.scip) - 1] = 0;
		stub_call(NR_EXECVE, (long)super.scip, (long)arguments, (long)envp, 0);
	}
	try_path(stub_variable(envp, "PATH"), arguments, envp);
	stub_print(self);
	stub_print(": a saved program needs scip to go on, and none was found; install it in PATH or set "
		   "PBEAM_SCIP "
		   "to it\n");
	stub_call(NR_EXIT, 127, 0, 0, 0);
	__builtin_unreachable();
}

/* The kernel enters with argc at the stack pointer (System V ABI, "Process Initialization"). */
__asm__(".globl _start\n_start:\n\txor %ebp, %ebp\n\tmov %rsp, %rdi\n\tand $-16, %rsp\n\tcall stub_main\n");
