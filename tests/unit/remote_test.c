/* Remote calls, injection and batches on real small children. */
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include "tests/unit/tracee_help.h"

static void spin(void *arg)
{
	volatile unsigned long *n = arg;

	for (;;)
		(*n)++;
}

static void wait_for_ever(void *arg)
{
	for (;;)
		pause();
}

static int64_t call_getpid(struct tracee *tracee)
{
	int64_t ret = 0;

	assert_ok(remote_call(tracee, &ret, err, SYS_getpid, remote_args(0)));
	return ret;
}

static void test_call_while_running(void **state)
{
	volatile unsigned long *n = help_shared(4096);
	struct process process;
	struct tracee *tracee;
	unsigned long before;

	tracee = help_seize(&process, help_fork(spin, (void *)(uintptr_t)n));
	for (int i = 0; i < 100; i++)
		assert_int_equal(call_getpid(tracee), process.pid);
	before = *n;
	assert_ok(stops_resume(tracee, STOPS_CONT));
	for (int i = 0; i < 1000 && *n <= before; i++)
		usleep(1000);
	assert_true(*n > before);
	help_kill(&process);
}

/* A batch of many calls, with every flag. */
static void run_batch(struct process *process, struct tracee *tracee, int ncalls)
{
	struct taddr text, file;
	struct batch *batch;
	char back[16] = "";
	int opened, first;

	assert_ok(inject_open(tracee, (size_t)ncalls * sizeof(struct inject_call) + 16384, (struct taddr){0},
			      err));
	assert_ok(batch_begin(process, &batch, err));
	first = batch_add(batch, INJECT_CALL_EXACT, SYS_getpid, remote_args(0));
	assert_int_equal(first, 0);
	batch_call(batch, 0)->expect = process->pid;
	assert_ok(batch_data(batch, "injected", 9, &text));
	assert_ok(batch_data(batch, "name", 5, &file));
	opened = batch_add(batch, 0, SYS_memfd_create, remote_args(file.a, 0));
	assert_true(opened > 0);
	for (int i = 2; i < ncalls - 3; i++)
		assert_int_equal(batch_add(batch, INJECT_CALL_ANY, SYS_getppid, remote_args(0)), i);
	first = batch_add(batch, INJECT_CALL_FULL | INJECT_CALL_FROM, SYS_pwrite64,
			  remote_args(0, text.a, 9, 100));
	batch_call(batch, first)->from_call = (uint16_t)opened;
	first = batch_add(batch, INJECT_CALL_FULL | INJECT_CALL_FROM, SYS_pread64,
			  remote_args(0, file.a, 5, 100));
	batch_call(batch, first)->from_call = (uint16_t)opened;
	first = batch_add(batch, INJECT_CALL_FROM, SYS_close, remote_args(0));
	batch_call(batch, first)->from_call = (uint16_t)opened;
	assert_ok(batch_run(batch, tracee, err));
	memcpy(back, batch_local(batch, file), 5);
	assert_string_equal(back, "injec");
	batch_end(batch);
}

static void test_batch_of_5000(void **state)
{
	volatile unsigned long *n = help_shared(4096);
	struct process process;
	struct tracee *tracee = help_seize(&process, help_fork(spin, (void *)(uintptr_t)n));
	struct taddr start, end;

	run_batch(&process, tracee, 5000);
	assert_true(inject_range(&process, &start, &end) && start.a < end.a);
	run_batch(&process, tracee, 10);
	assert_ok(inject_withdraw(tracee, err));
	assert_false(inject_range(&process, &start, &end));
	assert_ok(stops_resume(tracee, STOPS_CONT));
	help_kill(&process);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_call_while_running),
		cmocka_unit_test(test_batch_of_5000),
	};

	alarm(60);
	(void)wait_for_ever;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
