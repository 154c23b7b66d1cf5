/* docs/SYSCALLS.md, from the table. */
#include <inttypes.h>
#include <stdio.h>

#include "scip/syscall/table.h"

static const char *const kind_names[KIND_COUNT] = {
	[KIND_INT] = "int",
	[KIND_FD] = "fd",
	[KIND_DIRFD] = "dirfd",
	[KIND_PATH] = "path",
	[KIND_PTR] = "pointer",
	[KIND_SIZE] = "size",
	[KIND_SIG] = "signal",
	[KIND_VPID] = "vpid",
	[KIND_VTID] = "vtid",
	[KIND_VPGID] = "vpgid",
	[KIND_VPID_ALL] = "vpid or -vpgid",
	[KIND_SOCKADDR_IN] = "address",
	[KIND_SOCKADDR_OUT] = "address out",
	[KIND_RET_FD] = "fd",
	[KIND_RET_VPID] = "vpid",
};

static const char *const level_names[] = {
	[LEVEL_PASS] = "PASS", [LEVEL_VIRT] = "VIRT", [LEVEL_EMUL] = "EMUL", [LEVEL_DENY] = "DENY"};

static const char *const freeze_names[] = {[SYSCALL_FREEZE_REISSUE] = "reissue",
					   [SYSCALL_FREEZE_EINTR] = "EINTR",
					   [SYSCALL_FREEZE_WAIT] = "wait"};

static void write_condition(FILE *out, const struct syscall_condition *c)
{
	switch (c->op) {
	case COND_ALWAYS:
		fputs("always", out);
		break;
	case COND_SIGNALFD:
		fputs("argument 1 is a signalfd", out);
		break;
	case COND_NOT:
		fprintf(out, "argument %u is not %" PRIu32, c->arg + 1u, c->values[0]);
		break;
	case COND_BITS:
		fprintf(out, "argument %u has 0x%" PRIx32, c->arg + 1u, c->mask);
		break;
	case COND_IN:
		fprintf(out, "argument %u is", c->arg + 1u);
		for (unsigned i = 0; i < c->n; i++)
			fprintf(out, "%s 0x%" PRIx32, i ? "," : "", c->values[i]);
		break;
	default:
		break;
	}
}

static void write_row(FILE *out, unsigned nr, const struct syscall_row *row)
{
	fprintf(out, "| %u | %s | %s | ", nr, row->name, level_names[row->level]);
	for (unsigned i = 0; i < 6 && row->args[i]; i++)
		fprintf(out, "%s%s", i ? ", " : "", kind_names[row->args[i]]);
	fprintf(out, "%s%s | ", row->ret ? " → " : "", row->ret ? kind_names[row->ret] : "");
	write_condition(out, &row->born);
	fputs(" | ", out);
	write_condition(out, &row->restored);
	fprintf(out, " | %s | %s |\n", freeze_names[row->freeze], row->note);
}

void syscall_write_document(FILE *out)
{
	unsigned count[LEVEL_DENY + 1] = {0}, total = 0;

	for (unsigned nr = 0; nr < SYSCALL_ROWS; nr++) {
		if (!syscall_table[nr].name)
			continue;
		count[syscall_table[nr].level]++;
		total++;
	}
	fprintf(out,
		"# System calls\n\n"
		"Made from scip/syscall/table_x86_64.def by `ninja -C build syscalls_doc && "
		"build/scip/syscalls_doc > "
		"docs/SYSCALLS.md`; do not edit.\n\n"
		"%u calls of x86-64 (kernel 6.18): %u PASS (never trapped for names: the kernel's answer is "
		"right), %u VIRT "
		"(numbers and paths are\ntranslated, the kernel does the work), %u EMUL (answered by scip), "
		"%u DENY "
		"(refused). A number that is not here, a 32-bit `int 0x80`\nand an x32 number are trapped, "
		"answered "
		"ENOSYS and counted.\n\n"
		"*born* and *restored* say when the filter of that name traps the call; empty: never. "
		"*freeze* is what "
		"becomes of a call that a\nfreeze interrupts where the kernel does not restart it. Where "
		"files of a job are "
		"under other paths (docs/CLUSTER.md)\nevery call with a path, and getcwd, is trapped as "
		"well.\n\n"
		"| number | name | level | arguments | born | restored | freeze | note |\n"
		"|---|---|---|---|---|---|---|---|\n",
		total, count[LEVEL_PASS], count[LEVEL_VIRT], count[LEVEL_EMUL], count[LEVEL_DENY]);
	for (unsigned nr = 0; nr < SYSCALL_ROWS; nr++)
		if (syscall_table[nr].name)
			write_row(out, nr, &syscall_table[nr]);
}
