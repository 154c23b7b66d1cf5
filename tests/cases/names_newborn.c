/* A new thread's first calls see its number as its maker does. */
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include "tests/cases/case.h"

enum { THREADS = 100, STACK = 1 << 16 };

struct newborn {
	pid_t stored, told; /* by clone(), by gettid() */
	int signalled;	    /* the result of tgkill() with the stored number */
	_Atomic pid_t alive;
};

static int begin(void *arg)
{
	struct newborn *self = arg;

	self->told = (pid_t)syscall(SYS_gettid);
	self->signalled = (int)syscall(SYS_tgkill, getpid(), self->stored, 0);
	syscall(SYS_exit, 0);
	return 0;
}

static void make(struct newborn *newborn, char *stack)
{
	const int flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM |
			  CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID | CLONE_PARENT_SETTID;
	pid_t made;

	newborn->alive = 1;
	made = clone(begin, stack + STACK, flags, newborn, &newborn->stored, NULL, &newborn->alive);
	CHECK(made > 0);
	while (newborn->alive)
		sched_yield();
	if (newborn->stored != made || newborn->told != made || newborn->signalled != 0)
		case_fail("thread %d: clone() stored %d, gettid() returned %d, tgkill() %d", made,
			  newborn->stored, newborn->told, newborn->signalled);
}

int main(void)
{
	char *stack =
		mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);

	CHECK(stack != MAP_FAILED);
	for (int i = 0; i < THREADS / 2; i++)
		make(&(struct newborn){0}, stack);
	case_wait();
	for (int i = 0; i < THREADS / 2; i++)
		make(&(struct newborn){0}, stack);
	case_pass();
}
