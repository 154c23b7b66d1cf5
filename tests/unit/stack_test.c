/* Stacks of live children. */
#include "scip/tracee/stack.h"

#include "tests/unit/tracee_help.h"

static __attribute__((noinline)) void innermost(void)
{
	pause();
	__asm__ volatile(""); /* no tail call */
}

__attribute__((noinline)) void middle_function(volatile int *depth);
__attribute__((noinline)) void middle_function(volatile int *depth)
{
	if ((*depth)++ < 3)
		middle_function(depth);
	else
		innermost();
	(*depth)--;
}

static void body(void *arg)
{
	volatile int depth = 0;

	middle_function(&depth);
}

static char *stack_of(pid_t pid)
{
	struct process process;
	char *text;
	size_t len;
	FILE *out = open_memstream(&text, &len);

	help_wait_asleep(pid);
	help_seize(&process, pid);
	assert_ok(stack_write(&process, out, err));
	fclose(out);
	help_kill(&process);
	return text;
}

static void test_names(void **state)
{
	char *text = stack_of(help_fork(body, NULL));
	int n = 0;

	for (const char *at = text; (at = strstr(at, "middle_function")); at++)
		n++;
	if (n < 3 || !strstr(text, "pause") || !strstr(text, "test_names") || !strstr(text, "main"))
		fail_msg("%s", text);
	free(text);
}

/* Prints the stack of any process, for use by hand. */
static int show(pid_t pid)
{
	struct process process = {.pid = pid};
	struct tracee *tracee;
	struct err err = ERR_INIT;

	if (stops_seize(&process, pid, &tracee, &err) < 0 || stack_write(&process, stdout, &err) < 0)
		fprintf(stderr, "%s\n", err.text);
	return 0;
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_names)};

	alarm(60);
	if (argc > 1)
		return show(atoi(argv[1]));
	return cmocka_run_group_tests(tests, NULL, NULL);
}
