/*
 * Loads a filter into a running process from inside: when its names, or those of its relatives,
 * diverge. Filters add up; a call that several of them trap is trapped once.
 */
#include <errno.h>
#include <linux/seccomp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include "scip/syscall/call.h"
#include "scip/tracee/memory.h"
#include "scip/tracee/remote.h"

struct remote_program {
	uint16_t len;
	uint16_t pad[3];
	uint64_t filter;
};

/* Writes the program to `page` of the tracee. */
static int write_program(const struct process *process, struct taddr page, const struct sock_fprog *program)
{
	struct remote_program head = {.len = program->len, .filter = page.a + sizeof(head)};
	int r = memory_write(process, page, &head, sizeof(head));

	return r < 0 ? r
		     : memory_write(process, (struct taddr){head.filter}, program->filter,
				    program->len * sizeof(program->filter[0]));
}

/* Loads the filter into all threads at once, or one by one if their filters differ (a thread has installed
 * one for itself). */
static int filter_load_at(struct tracee *tracee, struct taddr page, struct err *err)
{
	int64_t ret = 0;
	int r = remote_call(tracee, &ret, err, SYS_seccomp,
			    remote_args(SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, page.a));

	if (r < 0 || ret == 0)
		return r;
	for (struct tracee *t = tracee->process->tracees; t && r == 0; t = t->next) {
		r = remote_call(t, &ret, err, SYS_seccomp, remote_args(SECCOMP_SET_MODE_FILTER, 0, page.a));
		if (r == 0 && ret < 0)
			r = err_code(err, (int)ret, "load the system call filter into thread %d", t->tid);
	}
	return r;
}

int filter_load(struct tracee *tracee, const struct sock_fprog *program, struct err *err)
{
	struct process *process = tracee->process;
	size_t len = sizeof(struct remote_program) + program->len * sizeof(program->filter[0]);
	int64_t page = 0, ignored;
	int r = remote_call(
		tracee, &page, err, SYS_mmap,
		remote_args(0, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, (uint64_t)-1, 0));

	if (r == 0 && page < 0)
		r = err_code(err, (int)page, "make room for a system call filter in process %d",
			     process->pid);
	if (r < 0)
		return r;
	r = write_program(process, (struct taddr){(uint64_t)page}, program);
	if (r < 0)
		err_code(err, r, "write a system call filter into process %d", process->pid);
	else
		r = filter_load_at(tracee, (struct taddr){(uint64_t)page}, err);
	if (remote_call(tracee, &ignored, NULL, SYS_munmap, remote_args((uint64_t)page, len)) < 0 && r == 0)
		r = err_code(err, -ESRCH, "unmap the system call filter's page in process %d", process->pid);
	return r;
}

static int build_and_load(struct tracee *tracee, enum syscall_filter which, struct err *err)
{
	struct sock_fprog program;
	int r = syscall_filter_build(which, &program, err);

	if (r < 0)
		return r;
	r = filter_load(tracee, &program, err);
	free(program.filter);
	return r;
}

int syscall_filter_datagrams(struct tracee *tracee, bool send, struct err *err)
{
	struct syscall_state *state = tracee->process->calls;
	int r;

	if (state->traps_send || (state->traps_receive && !send))
		return 0;
	r = build_and_load(tracee, send ? SYSCALL_FILTER_SEND : SYSCALL_FILTER_RECEIVE, err);
	if (r < 0)
		return r;
	state->traps_receive = true;
	state->traps_send = send;
	return 0;
}

int syscall_filter_inject(struct tracee *tracee, struct err *err)
{
	int r;

	if (tracee->process->diverged)
		return 0;
	r = build_and_load(tracee, syscall_filter_diverged(tracee->process->names), err);
	if (r == 0)
		r = syscall_filter_signalfds(tracee, err);
	if (r == 0)
		tracee->process->diverged = true;
	return r;
}
