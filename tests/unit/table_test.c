/* The system call table against the kernel's headers, the running kernel and its own page; the filters
 * against the table. */

#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/seccomp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/io.h"
#include "scip/syscall/call.h"
#include "tests/unit/unit.h"

static void test_kernel_headers(void **state)
{
	FILE *f = fopen("/usr/include/x86_64-linux-gnu/asm/unistd_64.h", "re");
	char line[256], name[128];
	int nr, n = 0, wrong = 0;

	if (!f)
		skip();
	while (fgets(line, sizeof(line), f)) {
		const struct syscall_row *row;

		if (sscanf(line, "#define __NR_%127s %d", name, &nr) != 2)
			continue;
		n++;
		row = syscall_row(nr);
		if (row && !strcmp(row->name, name))
			continue;
		print_message("%d is %s, the table says %s\n", nr, name, row ? row->name : "nothing");
		wrong++;
	}
	fclose(f);
	assert_true(n > 300);
	assert_int_equal(wrong, 0);
}

/* Every number that the running kernel knows has a row. Tested beyond the end of the headers: in a child,
 * with invalid arguments. */
static void test_running_kernel(void **state)
{
	int missing = 0;

	for (int nr = 451; nr < 520; nr++) {
		pid_t pid = fork();
		int status;

		if (pid == 0) {
			long r = syscall(nr, -1L, -1L, -1L, -1L, -1L, -1L);

			_exit(r < 0 && errno == ENOSYS ? 1 : 0);
		}
		waitpid(pid, &status, 0);
		if (status != 0 || syscall_row(nr))
			continue;
		print_message("the kernel has call %d, the table has not: it is answered ENOSYS\n", nr);
		missing++;
	}
	if (missing)
		print_message("kernel newer than the table: %d calls\n", missing);
}

static bool may_trap(const struct syscall_row *row)
{
	return row->born.op || row->restored.op || row->cluster.op || row->diverged.op || row->moved.op ||
	       row->receive.op || row->send.op || row->on_signalfd;
}

static void test_rows(void **state)
{
	for (int nr = 0; nr < SYSCALL_ROWS; nr++) {
		const struct syscall_row *row = syscall_row(nr);

		if (!row)
			continue;
		assert_non_null(row->note);
		assert_true(row->level >= LEVEL_PASS && row->level <= LEVEL_DENY);
		/* no PASS row is trapped, no translated one never is */
		assert_int_equal(row->level == LEVEL_PASS, !may_trap(row));
		/* the restored filter traps all that the born filter traps */
		if (row->born.op != COND_NEVER)
			assert_int_not_equal(row->restored.op, COND_NEVER);
	}
	assert_string_equal(syscall_name(SYS_read), "read");
	assert_string_equal(syscall_name(-1), "unknown");
	assert_null(syscall_row(337));
	assert_null(syscall_row(SYSCALL_ROWS));
}

static void test_document(void **state)
{
	char *text, *made = NULL;
	size_t len, made_len = 0;
	FILE *out = open_memstream(&made, &made_len);

	syscall_write_document(out);
	fclose(out);
	assert_int_equal(io_slurp(AT_FDCWD, PBEAM_SOURCE "/docs/SYSCALLS.md", 1u << 20, &text, &len), 0);
	if (strcmp(text, made) != 0)
		fail_msg("docs/SYSCALLS.md is not what the table says: ninja -C build syscalls_doc && "
			 "build/syscalls/syscalls_doc > "
			 "docs/SYSCALLS.md");
	free(text);
	free(made);
}

/* Interprets the classic BPF that the filters use. */
static uint32_t run(const struct sock_fprog *p, const struct seccomp_data *data)
{
	uint32_t a = 0;

	for (size_t pc = 0; pc < p->len; pc++) {
		const struct sock_filter *f = &p->filter[pc];

		switch (f->code) {
		case BPF_LD | BPF_W | BPF_ABS:
			memcpy(&a, (const char *)data + f->k, sizeof(a));
			break;
		case BPF_ALU | BPF_AND | BPF_K:
			a &= f->k;
			break;
		case BPF_JMP | BPF_JA:
			pc += f->k;
			break;
		case BPF_JMP | BPF_JEQ | BPF_K:
			pc += a == f->k ? f->jt : f->jf;
			break;
		case BPF_JMP | BPF_JGE | BPF_K:
			pc += a >= f->k ? f->jt : f->jf;
			break;
		case BPF_JMP | BPF_JSET | BPF_K:
			pc += a & f->k ? f->jt : f->jf;
			break;
		case BPF_RET | BPF_K:
			return f->k;
		default:
			fail_msg("instruction %x", f->code);
		}
	}
	fail_msg("ran off the end");
	return 0;
}

static void check_number(const struct sock_fprog *p, enum syscall_filter which, int nr)
{
	const struct syscall_row *row = syscall_row(nr);
	struct syscall_condition condition = {0}, *c = row ? &condition : NULL;
	uint64_t values[32] = {0, 1, ~0ull, 1ull << 32, 12345};
	unsigned n = 5;

	if (row)
		condition = syscall_filter_condition(which, row);
	for (unsigned i = 0; c && i < c->n; i++)
		values[n++] = c->values[i] | 0xabcull << 32;
	if (c && c->op == COND_BITS)
		values[n++] = c->mask;
	for (unsigned i = 0; i < n; i++) {
		struct seccomp_data data = {.nr = nr, .arch = AUDIT_ARCH_X86_64};
		uint32_t expect = SECCOMP_RET_TRACE | TRAP_UNKNOWN;
		uint64_t args[6];

		for (unsigned arg = 0; arg < 6; arg++)
			data.args[arg] = args[arg] = values[i];
		if (c)
			expect = syscall_condition_holds(c, args) ? SECCOMP_RET_TRACE | TRAP_ROW
								  : SECCOMP_RET_ALLOW;
		if (run(p, &data) != expect)
			fail_msg("call %d (%s), argument %llx: %x, not %x", nr, syscall_name(nr),
				 (unsigned long long)values[i], run(p, &data), expect);
	}
}

static void check_filter(enum syscall_filter which)
{
	struct sock_fprog p;
	bool restored = which >= SYSCALL_FILTER_RESTORED && which < SYSCALL_FILTER_RECEIVE;
	struct seccomp_data data = {.nr = SYS_read, .arch = AUDIT_ARCH_I386};
	pid_t pid;
	int status;

	assert_int_equal(syscall_filter_build(which, &p, NULL), 0);
	print_message("%d instructions\n", p.len);
	for (int nr = -1; nr < 600; nr++)
		check_number(&p, which, nr);
	assert_int_equal(run(&p, &data), SECCOMP_RET_TRACE | TRAP_UNKNOWN);
	data.arch = AUDIT_ARCH_X86_64;
	data.nr = 0x40000000 | SYS_read; /* x32 */
	assert_int_equal(run(&p, &data), SECCOMP_RET_TRACE | TRAP_UNKNOWN);
	/* the kernel accepts it; without a tracer a trapped call is ENOSYS */
	pid = fork();
	if (pid == 0) {
		if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 ||
		    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &p) < 0)
			_exit(1);
		if (syscall(600) >= 0 || errno != ENOSYS)
			_exit(2);
		if (syscall(SYS_getpid) < 0 && !restored)
			_exit(3);
		if (syscall(SYS_getuid) < 0)
			_exit(4);
		syscall(SYS_exit_group, 0);
		ualarm(1000, 0); /* exit_group is trapped by the restored filter */
		for (;;)
			pause();
	}
	waitpid(pid, &status, 0);
	if (!restored)
		assert_int_equal(status, 0);
	else
		assert_true(WIFSIGNALED(status));
	free(p.filter);
}

static void test_born_filter(void **state)
{
	check_filter(SYSCALL_FILTER_BORN);
}

static void test_restored_filter(void **state)
{
	check_filter(SYSCALL_FILTER_RESTORED);
}

static void test_filters_of_a_cluster(void **state)
{
	check_filter(SYSCALL_FILTER_CLUSTER);
	check_filter(SYSCALL_FILTER_DIVERGED);
	check_filter(SYSCALL_FILTER_MOVED);
	check_filter(SYSCALL_FILTER_RECEIVE);
	check_filter(SYSCALL_FILTER_SEND);
}

/* Calls with paths, and the call that returns a path. */
static void test_mapped_filter(void **state)
{
	check_filter(SYSCALL_FILTER_MAPPED);
	assert_true(syscall_has_path(syscall_row(SYS_rename)));
	assert_true(syscall_has_path(syscall_row(SYS_symlinkat)));
	assert_true(syscall_has_path(syscall_row(SYS_getcwd)));
	assert_false(syscall_has_path(syscall_row(SYS_read)));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_filters_of_a_cluster),
		cmocka_unit_test(test_kernel_headers),
		cmocka_unit_test(test_running_kernel),
		cmocka_unit_test(test_rows),
		cmocka_unit_test(test_document),
		cmocka_unit_test(test_born_filter),
		cmocka_unit_test(test_restored_filter),
		cmocka_unit_test(test_mapped_filter),
	};

	alarm(60);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
