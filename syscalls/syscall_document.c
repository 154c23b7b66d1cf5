/* docs/SYSCALLS.md, from the table. */
#include <inttypes.h>
#include <stdio.h>

#include "syscalls/syscall_table.h"

static const char *const kind_names[KIND_COUNT] = {
	[KIND_INT] = "int",
	[KIND_FD] = "fd",
	[KIND_DIRFD] = "dirfd",
	[KIND_PATH] = "path",
	[KIND_PATH_OUT] = "path out",
	[KIND_TEXT] = "text",
	[KIND_PTR] = "pointer",
	[KIND_SIZE] = "size",
	[KIND_SIG] = "signal",
	[KIND_VPID] = "vpid",
	[KIND_VTID] = "vtid",
	[KIND_VPGID] = "vpgid",
	[KIND_VPID_ALL] = "vpid or -vpgid",
	[KIND_CLOCK] = "clock",
	[KIND_SOCKADDR_IN] = "address",
	[KIND_SOCKADDR_OUT] = "address out",
	[KIND_RET_FD] = "fd",
	[KIND_RET_VPID] = "vpid",
};

static const char *const level_names[] = {
	[LEVEL_PASS] = "PASS", [LEVEL_VIRT] = "VIRT", [LEVEL_EMUL] = "EMUL", [LEVEL_DENY] = "DENY"};

static void write_condition(FILE *out, const struct syscall_condition *c)
{
	switch (c->op) {
	case COND_ALWAYS:
		fputs("always", out);
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

/* An attribute's condition, if it has one, behind the name of its filter. */
static void write_filter(FILE *out, const char *name, const struct syscall_condition *c)
{
	if (!c->op)
		return;
	fprintf(out, "; *%s*: ", name);
	write_condition(out, c);
}

static void write_interrupted(FILE *out, const struct syscall_row *row)
{
	if (row->timeout.unit)
		fputs(row->timeout.kernel_keeps ? "the kernel keeps its end" : "for the time left", out);
	else if (row->transfer.shape)
		fputs("for the rest", out);
	else if (row->eintr)
		fputs("made again", out);
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
	if (row->on_signalfd)
		fprintf(out, "%sargument 1 is a signalfd", row->restored.op ? "; " : "");
	write_filter(out, "cluster", &row->cluster);
	write_filter(out, "diverged", &row->diverged);
	write_filter(out, "moved", &row->moved);
	write_filter(out, "receive", &row->receive);
	write_filter(out, "send", &row->send);
	fputs(" | ", out);
	write_interrupted(out, row);
	fprintf(out, " | %s | %s |\n", row->remote.when.op ? "yes" : "", row->note);
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
		"Made from syscalls/table_x86_64.def by `ninja -C build syscalls_doc && "
		"build/syscalls/syscalls_doc >\ndocs/SYSCALLS.md`. Do not edit.\n\n"
		"%u calls of x86-64 (kernel 6.18), by support level:\n\n"
		"- PASS (%u): never trapped for names; the kernel's answer is right.\n"
		"- VIRT (%u): numbers and paths are translated, the kernel does the work.\n"
		"- EMUL (%u): answered by scip.\n"
		"- DENY (%u): refused.\n\n"
		"A number that is not in the table, a 32-bit `int 0x80` and an x32 number are trapped, "
		"answered with\nENOSYS and counted.\n\n"
		"*born* and *restored* say when the filter of that name traps the call; an empty field means "
		"never.\nOther filters are named where they differ. Where files of a job have other paths "
		"(docs/CLUSTER.md),\nevery call with a path is trapped too.\n\n"
		"*interrupted* says how a call goes on after a freeze where the kernel does not restart it "
		"unchanged:\nfor the time that was left, for the bytes that were left, or made again in "
		"place of "
		"EINTR.\n\n"
		"*remote* marks calls that pbeamd makes for a process of another host.\n\n"
		"| number | name | level | arguments | born | restored | interrupted | remote | note |\n"
		"|---|---|---|---|---|---|---|---|---|\n",
		total, count[LEVEL_PASS], count[LEVEL_VIRT], count[LEVEL_EMUL], count[LEVEL_DENY]);
	for (unsigned nr = 0; nr < SYSCALL_ROWS; nr++)
		if (syscall_table[nr].name)
			write_row(out, nr, &syscall_table[nr]);
}
