/*
 * Filters that the program itself has installed (seccomp). They are kept with the image. A filter may kill
 * the process for a call that the dump needs, so before anything is injected each such call is put to the
 * filters here, in an interpreter: what a filter would not let pass is a refusal, not a dead program.
 */
#include "scip/dump/dump_parts.h"

#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>

#include "base/cleanup.h"
#include "namespace/record.h"
#include "proto/message.h"
#include "scip/syscall/syscall.h"
#include "syscalls/syscall_table.h"

/* What the injected code calls to dump a process. */
static const int32_t NEEDED[] = {SYS_openat,	   SYS_close,	  SYS_mmap,	     SYS_munmap,
				 SYS_pwrite64,	   SYS_pwritev,	  SYS_prctl,	     SYS_sigaltstack,
				 SYS_rt_sigaction, SYS_getitimer, SYS_timer_gettime, SYS_timer_getoverrun,
				 SYS_arch_prctl,   SYS_brk,	  SYS_mincore};

static uint32_t load_word(const struct seccomp_data *data, uint32_t offset)
{
	uint32_t word = 0;

	if (offset <= sizeof(*data) - sizeof(word))
		memcpy(&word, (const char *)data + offset, sizeof(word));
	return word;
}

static uint32_t compute_alu(uint16_t code, uint32_t a, uint32_t operand)
{
	switch (BPF_OP(code)) {
	case BPF_ADD:
		return a + operand;
	case BPF_SUB:
		return a - operand;
	case BPF_MUL:
		return a * operand;
	case BPF_DIV:
		return operand ? a / operand : 0;
	case BPF_OR:
		return a | operand;
	case BPF_AND:
		return a & operand;
	case BPF_XOR:
		return a ^ operand;
	case BPF_LSH:
		return operand < 32 ? a << operand : 0;
	case BPF_RSH:
		return operand < 32 ? a >> operand : 0;
	case BPF_NEG:
		return -a;
	default:
		return a;
	}
}

static bool is_jump_taken(uint16_t code, uint32_t a, uint32_t operand)
{
	switch (BPF_OP(code)) {
	case BPF_JEQ:
		return a == operand;
	case BPF_JGT:
		return a > operand;
	case BPF_JGE:
		return a >= operand;
	case BPF_JSET:
		return (a & operand) != 0;
	default:
		return false;
	}
}

uint32_t dump_run_filter(const struct sock_filter *filter, size_t n, const struct seccomp_data *data)
{
	uint32_t a = 0, x = 0, memory[BPF_MEMWORDS] = {0};

	for (size_t pc = 0; pc < n; pc++) {
		const struct sock_filter *f = &filter[pc];
		uint32_t operand = BPF_SRC(f->code) == BPF_X ? x : f->k;
		uint32_t slot = f->k < BPF_MEMWORDS ? memory[f->k] : 0;

		switch (BPF_CLASS(f->code)) {
		case BPF_LD:
			a = BPF_MODE(f->code) == BPF_ABS   ? load_word(data, f->k)
			    : BPF_MODE(f->code) == BPF_MEM ? slot
			    : BPF_MODE(f->code) == BPF_LEN ? (uint32_t)sizeof(*data)
							   : f->k;
			break;
		case BPF_LDX:
			x = BPF_MODE(f->code) == BPF_MEM   ? slot
			    : BPF_MODE(f->code) == BPF_LEN ? (uint32_t)sizeof(*data)
							   : f->k;
			break;
		case BPF_ST:
		case BPF_STX:
			if (f->k < BPF_MEMWORDS)
				memory[f->k] = BPF_CLASS(f->code) == BPF_ST ? a : x;
			break;
		case BPF_ALU:
			a = compute_alu(f->code, a, operand);
			break;
		case BPF_JMP:
			if (BPF_OP(f->code) == BPF_JA)
				pc += f->k;
			else
				pc += is_jump_taken(f->code, a, operand) ? f->jt : f->jf;
			break;
		case BPF_RET:
			return BPF_RVAL(f->code) == BPF_A ? a : f->k;
		default: /* BPF_MISC */
			if (BPF_MISCOP(f->code) == BPF_TAX)
				x = a;
			else
				a = x;
		}
	}
	return SECCOMP_RET_KILL_PROCESS;
}

static int check_call(const struct sock_filter *filter, size_t n, struct err *err)
{
	for (size_t i = 0; i < sizeof(NEEDED) / sizeof(NEEDED[0]); i++) {
		const struct seccomp_data data = {.nr = NEEDED[i], .arch = AUDIT_ARCH_X86_64};
		uint32_t action = dump_run_filter(filter, n, &data) & SECCOMP_RET_ACTION_FULL;

		if (action != SECCOMP_RET_ALLOW && action != SECCOMP_RET_LOG && action != SECCOMP_RET_TRACE)
			return err_set(err, -ENOTSUP,
				       "it has installed a seccomp filter that forbids %s, which saving it "
				       "needs; run it "
				       "without its sandbox",
				       syscall_name(NEEDED[i]));
	}
	return 0;
}

static int append_filter(Pbeam__Process *out, const void *filter, size_t bytes)
{
	ProtobufCBinaryData *list =
		reallocarray(out->seccomp_filters, out->n_seccomp_filters + 1, sizeof(ProtobufCBinaryData));

	if (!list)
		return -ENOMEM;
	out->seccomp_filters = list;
	memset(&list[out->n_seccomp_filters], 0, sizeof(list[0]));
	return message_bytes(&list[out->n_seccomp_filters++], filter, bytes);
}

int dump_filters(struct dump *dump, struct err *err)
{
	for (unsigned i = 0; dump->process->filters; i++) {
		auto_free void *filter = NULL;
		size_t bytes;
		int r = record_filter_get(dump->process->keeper, dump->process->vpid, i, &filter, &bytes);

		if (r <= 0)
			return r < 0 ? err_code(err, r, "the seccomp filters that it has installed") : 0;
		r = check_call(filter, bytes / sizeof(struct sock_filter), err);
		if (r >= 0)
			r = append_filter(dump->out, filter, bytes);
		if (r < 0)
			return r;
	}
	return 0;
}

bool dump_may_call(const struct dump *dump, int nr)
{
	const struct seccomp_data data = {.nr = nr, .arch = AUDIT_ARCH_X86_64};

	for (size_t i = 0; i < dump->out->n_seccomp_filters; i++) {
		const ProtobufCBinaryData *filter = &dump->out->seccomp_filters[i];
		uint32_t action = dump_run_filter((const void *)filter->data,
						  filter->len / sizeof(struct sock_filter), &data);

		if ((action & SECCOMP_RET_ACTION_FULL) != SECCOMP_RET_ALLOW)
			return false;
	}
	return true;
}
