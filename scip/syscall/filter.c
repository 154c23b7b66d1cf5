/*
 * The seccomp filters, compiled from the table to BPF.
 *
 * libseccomp does not fit: its rules trap on a match, with one comparison for each argument, and all
 * calls without a rule get one default action. Here numbers without a row must be trapped, while a row
 * such as "kill, if the pid is not 0" or "fcntl, if the command is one of six" must let other calls
 * pass.
 *
 * The program is a binary search over ranges of numbers with the same action. Leaves that need no
 * argument are constant, so that the kernel's bitmap of always-allowed calls (since 5.11) skips the
 * program for them: the kernel emulates the program with number and architecture alone, and gives up at
 * any other load.
 */
#include <errno.h>
#include <linux/audit.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "scip/syscall/call.h"

struct range {
	uint32_t first;
	struct syscall_condition when;
	uint32_t data; /* TRAP_* */
};

struct program {
	struct sock_filter *v;
	size_t n, room;
};

/* The first of two conditions that the row has. */
static const struct syscall_condition *condition_either(const struct syscall_condition *first,
							const struct syscall_condition *second)
{
	return first->op ? first : second;
}

struct syscall_condition syscall_filter_condition(enum syscall_filter which, const struct syscall_row *row)
{
	static const struct syscall_condition always = {.op = COND_ALWAYS};
	const struct syscall_condition *diverged = condition_either(&row->diverged, &row->restored);

	switch (which) {
	case SYSCALL_FILTER_BORN:
		return row->born;
	case SYSCALL_FILTER_CLUSTER:
		return *condition_either(&row->cluster, &row->born);
	case SYSCALL_FILTER_RESTORED:
		return row->restored;
	case SYSCALL_FILTER_DIVERGED:
		return *diverged;
	case SYSCALL_FILTER_MOVED:
		return *condition_either(&row->moved, diverged);
	case SYSCALL_FILTER_MAPPED:
		return syscall_has_path(row) ? always : *condition_either(&row->moved, diverged);
	case SYSCALL_FILTER_RECEIVE:
		return row->receive;
	case SYSCALL_FILTER_SEND:
		return *condition_either(&row->send, &row->receive);
	}
	return always;
}

/* Numbers with the same constant action form one range. The last range extends to the highest number. */
static size_t find_ranges(enum syscall_filter which, struct range *out)
{
	size_t n = 0;

	for (uint32_t nr = 0; nr <= SYSCALL_ROWS; nr++) {
		const struct syscall_row *row = syscall_row(nr);
		struct range r = {.first = nr, .when.op = COND_ALWAYS, .data = TRAP_UNKNOWN};

		if (row) {
			r.when = syscall_filter_condition(which, row);
			r.data = TRAP_ROW;
		}
		if (r.when.op > COND_ALWAYS || n == 0 || out[n - 1].when.op != r.when.op ||
		    out[n - 1].data != r.data)
			out[n++] = r;
	}
	return n;
}

static int program_emit(struct program *p, uint16_t code, uint32_t k, size_t jt, size_t jf)
{
	if (jt > 255 || jf > 255)
		return -E2BIG;
	if (p->n == p->room) {
		size_t room = p->room ? 2 * p->room : 512;
		struct sock_filter *v = realloc(p->v, room * sizeof(*v));

		if (!v)
			return -ENOMEM;
		p->v = v;
		p->room = room;
	}
	p->v[p->n++] = (struct sock_filter){code, (uint8_t)jt, (uint8_t)jf, k};
	return 0;
}

static int emit_leaf(struct program *p, const struct range *range)
{
	const struct syscall_condition *c = &range->when;
	const uint32_t trace = SECCOMP_RET_TRACE | range->data;
	int r = 0;

	if (c->op == COND_NEVER || c->op == COND_ALWAYS)
		return program_emit(p, BPF_RET | BPF_K, c->op == COND_ALWAYS ? trace : SECCOMP_RET_ALLOW, 0,
				    0);
	/* little endian: the low half comes first */
	r = program_emit(p, BPF_LD | BPF_W | BPF_ABS,
			 (uint32_t)offsetof(struct seccomp_data, args) + 8u * c->arg, 0, 0);
	if (r == 0 && c->op != COND_BITS && c->mask != ~0u)
		r = program_emit(p, BPF_ALU | BPF_AND | BPF_K, c->mask, 0, 0);
	if (c->op == COND_NOT && r == 0)
		r = program_emit(p, BPF_JMP | BPF_JEQ | BPF_K, c->values[0], 0, 1);
	if (c->op == COND_BITS && r == 0)
		r = program_emit(p, BPF_JMP | BPF_JSET | BPF_K, c->mask, 1, 0);
	for (unsigned i = 0; c->op == COND_IN && i < c->n && r == 0; i++)
		r = program_emit(p, BPF_JMP | BPF_JEQ | BPF_K, c->values[i], c->n - i, 0);
	if (r == 0)
		r = program_emit(p, BPF_RET | BPF_K, SECCOMP_RET_ALLOW, 0, 0);
	return r < 0 ? r : program_emit(p, BPF_RET | BPF_K, trace, 0, 0);
}

/* Emits ranges first .. last. Numbers below the middle fall through; the others jump over them. */
static int emit_tree(struct program *p, const struct range *ranges, size_t first, size_t last)
{
	size_t middle = first + (last - first + 1) / 2, jump;
	int r;

	if (first == last)
		return emit_leaf(p, &ranges[first]);
	r = program_emit(p, BPF_JMP | BPF_JGE | BPF_K, ranges[middle].first, 0, 1);
	jump = p->n;
	if (r == 0)
		r = program_emit(p, BPF_JMP | BPF_JA, 0, 0,
				 0); /* 32 bits wide, which a conditional jump is not */
	if (r == 0)
		r = emit_tree(p, ranges, first, middle - 1);
	if (r < 0)
		return r;
	p->v[jump].k = (uint32_t)(p->n - jump - 1);
	return emit_tree(p, ranges, middle, last);
}

int syscall_filter_build(enum syscall_filter which, struct sock_fprog *out, struct err *err)
{
	struct range *ranges = calloc(SYSCALL_ROWS + 1, sizeof(*ranges));
	struct program p = {0};
	size_t n;
	int r = ranges ? 0 : -ENOMEM;

	if (r == 0) {
		n = find_ranges(which, ranges);
		r = program_emit(&p, BPF_LD | BPF_W | BPF_ABS, (uint32_t)offsetof(struct seccomp_data, arch),
				 0, 0);
		if (r == 0)
			r = program_emit(&p, BPF_JMP | BPF_JEQ | BPF_K, AUDIT_ARCH_X86_64, 1, 0);
		if (r == 0)
			r = program_emit(&p, BPF_RET | BPF_K, SECCOMP_RET_TRACE | TRAP_UNKNOWN, 0, 0);
		if (r == 0)
			r = program_emit(&p, BPF_LD | BPF_W | BPF_ABS,
					 (uint32_t)offsetof(struct seccomp_data, nr), 0, 0);
		if (r == 0)
			r = emit_tree(&p, ranges, 0, n - 1);
		if (r == 0 && p.n > BPF_MAXINSNS)
			r = -E2BIG;
	}
	free(ranges);
	if (r < 0) {
		free(p.v);
		return err_code(err, r, "build the system call filter");
	}
	out->len = (unsigned short)p.n;
	out->filter = p.v;
	return 0;
}

enum syscall_filter syscall_filter_born(struct names *names)
{
	return names_cluster(names, NULL) ? SYSCALL_FILTER_CLUSTER : SYSCALL_FILTER_BORN;
}

enum syscall_filter syscall_filter_diverged(struct names *names)
{
	return names_cluster(names, NULL) ? SYSCALL_FILTER_DIVERGED : SYSCALL_FILTER_RESTORED;
}

enum syscall_filter syscall_filter_restored(struct names *names)
{
	return names_cluster(names, NULL) ? SYSCALL_FILTER_MOVED : SYSCALL_FILTER_RESTORED;
}
