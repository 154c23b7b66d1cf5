/* Calls about a process of another host, by the table's `remote` attribute. */
#include "syscalls/syscall_table.h"

bool syscall_remote_possible(const struct syscall_row *row, const uint64_t args[6])
{
	return syscall_condition_holds(&row->remote.when, args);
}

int syscall_remote_process(const struct syscall_row *row)
{
	int i = 0;

	while (row->args[i] != KIND_VPID && row->args[i] != KIND_VTID)
		i++;
	return i;
}

static size_t remote_arg_bytes(unsigned arg, size_t fixed, unsigned size_arg, const uint64_t args[6])
{
	size_t n = fixed ? fixed : (uint32_t)args[size_arg];

	if (!arg)
		return 0;
	return n < SYSCALL_REMOTE_BYTES ? n : SYSCALL_REMOTE_BYTES;
}

size_t syscall_remote_in_bytes(const struct syscall_row *row, const uint64_t args[6])
{
	return remote_arg_bytes(row->remote.in, row->remote.in_bytes, row->remote.size, args);
}

size_t syscall_remote_out_bytes(const struct syscall_row *row, const uint64_t args[6])
{
	return remote_arg_bytes(row->remote.out, row->remote.out_bytes, row->remote.size, args);
}
