/*
 * What handlers do with a call: answer it, change its arguments, store data in the tracee.
 *
 * The scratch area (SCRATCH_BYTES at process->scratch) is mapped by the first call that needs it. That
 * call is turned into an mmap, and made again from its own registers when the mmap returns. Each call
 * in progress has its own slot in the area, so threads do not share one. The stack of the tracee is
 * never used.
 */
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>

#include "base/io.h"
#include "scip/syscall/call.h"
#include "scip/tracee/memory.h"
#include "scip/tracee/regs.h"

#define SLOTS (SCRATCH_BYTES / CALL_SLOT_BYTES)

int call_answer(struct call *call, int64_t rval)
{
	int r = regs_set_call(call->tracee, -1);

	if (r == 0)
		r = regs_set_ret(call->tracee, rval);
	return r < 0 ? r : SYSCALL_SKIP;
}

int call_set_arg(struct call *call, unsigned arg, uint64_t value)
{
	int r = regs_set_arg(call->tracee, arg, value);

	if (r < 0)
		return r;
	call->now[arg] = value;
	return SYSCALL_WANT_EXIT;
}

int call_set_rval(struct call *call, int64_t value)
{
	int r = regs_set_ret(call->tracee, value);

	if (r == 0)
		call->rval = value;
	return r;
}

int call_read(const struct call *call, uint64_t address, void *out, size_t len)
{
	return memory_read(call->process, (struct taddr){address}, out, len);
}

int call_write(const struct call *call, uint64_t address, const void *data, size_t len)
{
	return memory_write(call->process, (struct taddr){address}, data, len);
}

int32_t call_real(const struct call *call, int32_t number)
{
	return names_real(call->process->names, (struct vpid){number}).n;
}

int32_t call_virtual(const struct call *call, int32_t number)
{
	return names_virtual(call->process->names, (struct rpid){number}).n;
}

void call_virtual_at(const struct call *call, uint64_t address)
{
	int32_t real, virtual;

	if (!address || call_read(call, address, &real, sizeof(real)) < 0 || real <= 0)
		return;
	virtual = call_virtual(call, real);
	if (virtual != real && call_write(call, address, &virtual, sizeof(virtual)) < 0)
		return;
}

/* A slot that no call in progress uses, or -1. */
static int free_slot(const struct process *process)
{
	bool used[SLOTS] = {false};

	for (const struct tracee *t = process->tracees; t; t = t->next) {
		const struct call *other = t->frame;

		if (other && other->slot >= 0)
			used[other->slot] = true;
	}
	for (unsigned i = 0; i < SLOTS; i++)
		if (!used[i])
			return (int)i;
	return -1;
}

/* The call becomes mmap(0, SCRATCH_BYTES, ...). */
static int call_map_scratch(struct call *call)
{
	const uint64_t args[6] = {
		0, SCRATCH_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, (uint64_t)-1, 0};
	int r = regs_set_call(call->tracee, SYS_mmap);

	for (unsigned i = 0; i < 6 && r >= 0; i++)
		r = call_set_arg(call, i, args[i]);
	call->mapping = true;
	return r < 0 ? r : SYSCALL_WANT_EXIT;
}

/* All slots are in use: the instruction is executed again until one is free. */
static int come_again(struct call *call)
{
	struct user_regs_struct regs;
	int r = regs_get(call->tracee, &regs);

	if (r < 0)
		return r;
	regs.rip -= 2;
	regs.rax = (unsigned long long)call->nr;
	regs.orig_rax = (unsigned long long)-1;
	r = regs_set(call->tracee, &regs);
	return r < 0 ? r : SYSCALL_SKIP;
}

int call_scratch(struct call *call, size_t offset, const void *data, size_t len, struct taddr *where)
{
	if (!call->process->scratch.a)
		return call_map_scratch(call);
	if (offset + len > CALL_SLOT_BYTES)
		return -E2BIG;
	if (call->slot < 0)
		call->slot = free_slot(call->process);
	if (call->slot < 0)
		return come_again(call);
	where->a = call->process->scratch.a + (uint64_t)call->slot * CALL_SLOT_BYTES + offset;
	return memory_write(call->process, *where, data, len);
}

int call_replace(struct call *call, unsigned arg, const void *data, size_t len)
{
	struct taddr where;
	int r = call_scratch(call, call->replaced, data, len, &where);

	if (r)
		return r;
	call->replaced += (len + 7) & ~(size_t)7;
	return call_set_arg(call, arg, where.a);
}

bool call_directory(const struct call *call, int dir_arg, char *out, size_t size)
{
	char link[64];

	if (dir_arg >= 0 && (int)call->args[dir_arg] != AT_FDCWD)
		snprintf(link, sizeof(link), "/proc/%d/fd/%d", call->tracee->tid, (int)call->args[dir_arg]);
	else
		snprintf(link, sizeof(link), "/proc/%d/cwd", call->tracee->tid);
	return io_readlink(AT_FDCWD, link, out, size) == 0 && out[0] == '/';
}
