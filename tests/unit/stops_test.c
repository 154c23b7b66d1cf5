/* Stops of real small children: their kinds and their order. */
#include <pthread.h>
#include <sched.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>

#include "scip/dump/freeze.h"
#include "tests/unit/tracee_help.h"

static void test_classify(void **state)
{
	assert_int_equal(stops_classify(0).stop, TRACEE_EXITED);
	assert_int_equal(stops_classify(SIGKILL).stop, TRACEE_EXITED);
	assert_int_equal(stops_classify(SIGUSR1 << 8 | 0x7f).stop, TRACEE_SIGNAL_DELIVERY_STOP);
	assert_int_equal(stops_classify(SIGUSR1 << 8 | 0x7f).signal, SIGUSR1);
	assert_int_equal(stops_classify((SIGTRAP | 0x80) << 8 | 0x7f).stop, TRACEE_SYSCALL_EXIT_STOP);
	assert_int_equal(stops_classify(PTRACE_EVENT_STOP << 16 | SIGSTOP << 8 | 0x7f).stop,
			 TRACEE_GROUP_STOP);
	assert_int_equal(stops_classify(PTRACE_EVENT_STOP << 16 | SIGTTIN << 8 | 0x7f).stop,
			 TRACEE_GROUP_STOP);
	assert_int_equal(stops_classify(PTRACE_EVENT_STOP << 16 | SIGTRAP << 8 | 0x7f).stop,
			 TRACEE_EVENT_STOP);
	assert_int_equal(stops_classify(PTRACE_EVENT_SECCOMP << 16 | SIGTRAP << 8 | 0x7f).stop,
			 TRACEE_SECCOMP_STOP);
	assert_int_equal(stops_classify(PTRACE_EVENT_CLONE << 16 | SIGTRAP << 8 | 0x7f).event,
			 PTRACE_EVENT_CLONE);
}

static void sleeper(void *arg)
{
	for (;;)
		pause();
}

static struct tracee *next(struct process *process)
{
	struct tracee *tracee;
	int status;

	assert_int_equal(stops_wait(process, -1, 0, &tracee, &status), 1);
	return tracee;
}

static void test_group_stop(void **state)
{
	struct process process;
	struct tracee *tracee = help_seize(&process, help_fork(sleeper, NULL));
	struct procfs_stat stat;

	assert_int_equal(tracee->stop, TRACEE_EVENT_STOP);
	assert_ok(stops_resume(tracee, STOPS_CONT));
	kill(process.pid, SIGTSTP);
	assert_ptr_equal(next(&process), tracee);
	assert_int_equal(tracee->stop, TRACEE_SIGNAL_DELIVERY_STOP);
	assert_int_equal(tracee->signal, SIGTSTP);
	assert_ok(stops_resume(tracee, STOPS_CONT));
	assert_ptr_equal(next(&process), tracee);
	assert_int_equal(tracee->stop, TRACEE_GROUP_STOP);
	assert_int_equal(tracee->signal, SIGTSTP);
	assert_ok(stops_resume(tracee, STOPS_CONT));
	assert_ok(stops_interrupt(tracee)); /* a group-stop that is left alone can be examined again */
	assert_ptr_equal(next(&process), tracee);
	assert_int_equal(tracee->stop, TRACEE_GROUP_STOP);
	assert_ok(stops_resume(tracee, STOPS_CONT));
	kill(process.pid, SIGCONT);
	assert_ptr_equal(next(&process), tracee);
	assert_int_equal(tracee->stop, TRACEE_EVENT_STOP);
	assert_ok(stops_resume(tracee, STOPS_CONT));
	assert_ptr_equal(next(&process), tracee);
	assert_int_equal(tracee->signal, SIGCONT);
	assert_ok(stops_resume(tracee, STOPS_CONT));
	help_wait_asleep(process.pid);
	assert_ok(procfs_stat_read(process.pid, 0, &stat, err));
	assert_int_equal(stat.state, 'S');
	help_kill(&process);
}

static void *nothing(void *arg)
{
	return arg;
}

static void makes_threads(void *arg)
{
	help_await_tracer();
	for (int i = 0; i < 200; i++) {
		pthread_t thread[4];

		for (int j = 0; j < 4; j++)
			pthread_create(&thread[j], NULL, nothing, NULL);
		for (int j = 0; j < 4; j++)
			pthread_join(thread[j], NULL);
	}
	_exit(42);
}

/* A thread's first stop comes before or after its creator's event. All are reported, and all end. */
static void test_threads(void **state)
{
	struct process process;
	struct tracee *tracee = help_seize(&process, help_fork(makes_threads, NULL));
	int status;

	assert_ok(stops_resume(tracee, STOPS_CONT));
	status = help_run_to_end(&process);
	assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 42);
	assert_int_equal(process.ntracees, 0);
}

static void makes_processes(void *arg)
{
	while (!*(volatile int *)arg)
		usleep(100);
	for (volatile int i = 0; i < 50; i++) {
		pid_t pid = i % 2 ? fork() : vfork();

		if (pid == 0)
			_exit(0);
		if (waitpid(pid, NULL, 0) != pid)
			_exit(1);
	}
	_exit(43);
}

static void detach(struct process *process, pid_t child)
{
	int status;

	assert_int_equal(stops_wait_child(process, child, &status), 0);
	assert_int_equal(ptrace(PTRACE_DETACH, child, NULL, NULL), 0);
}

/* Forked processes never appear as tracees. */
static void test_processes(void **state)
{
	struct process process;
	volatile int *go = help_shared(4096);
	struct tracee *tracee = help_seize(&process, help_fork(makes_processes, (void *)(uintptr_t)go));
	int children = 0;

	*go = 1;
	assert_ok(stops_resume(tracee, STOPS_CONT));
	for (;;) {
		unsigned long child;

		tracee = next(&process);
		assert_int_equal(tracee->tid, process.pid);
		if (tracee->stop == TRACEE_EXITED)
			break;
		if (tracee->stop == TRACEE_EVENT_STOP && tracee->event != PTRACE_EVENT_STOP) {
			assert_int_equal(ptrace(PTRACE_GETEVENTMSG, tracee->tid, NULL, &child), 0);
			detach(&process, (pid_t)child);
			children++;
		}
		assert_ok(stops_resume(tracee, STOPS_CONT));
	}
	assert_int_equal(WEXITSTATUS(process.exit_status), 43);
	assert_int_equal(children, 50);
	assert_int_equal(stops_take_orphan(&process), 0);
	process_clear(&process);
}

static void *executes(void *arg)
{
	execl("/bin/sh", "sh", "-c", "exit 44", NULL);
	_exit(1);
}

static void executes_in_thread(void *arg)
{
	pthread_t thread;

	help_await_tracer();
	for (int i = 0; i < 5; i++)
		pthread_create(&thread, NULL, (void *(*)(void *))(void *)sleeper, NULL);
	pthread_create(&thread, NULL, executes, NULL);
	for (;;)
		pause();
}

static void test_exec_by_thread(void **state)
{
	struct process process;
	struct tracee *tracee = help_seize(&process, help_fork(executes_in_thread, NULL));
	bool executed = false;

	assert_ok(stops_resume(tracee, STOPS_CONT));
	for (;;) {
		tracee = next(&process);
		if (tracee->stop == TRACEE_EXITED) {
			if (tracee->tid == process.pid)
				break;
			process_remove_tracee(&process, tracee);
			continue;
		}
		if (tracee->event == PTRACE_EVENT_EXEC && tracee->stop == TRACEE_EVENT_STOP) {
			executed = true;
			assert_int_equal(tracee->tid, process.pid);
			for (struct tracee *t = process.tracees, *after; t; t = after) {
				after = t->next;
				if (t == tracee)
					continue;
				assert_int_equal(t->stop, TRACEE_EXITED);
				process_remove_tracee(&process, t);
			}
			assert_int_equal(process.ntracees, 1);
		}
		if (stops_resume(tracee, STOPS_CONT) < 0) /* killed by the exec */
			tracee->stop = TRACEE_RUNNING;
	}
	assert_true(executed);
	assert_int_equal(WEXITSTATUS(process.exit_status), 44);
	process_clear(&process);
}

static void *lasting(void *arg)
{
	sleeper(NULL);
	return NULL;
}

static void leader_leaves(void *arg)
{
	pthread_t thread;

	while (!*(volatile int *)arg)
		usleep(100);
	for (int i = 0; i < 3; i++)
		pthread_create(&thread, NULL, lasting, NULL);
	syscall(SYS_exit, 0);
}

/* A freeze does not wait for a leader that has ended before its threads; the memory can still be read. */
static void test_leader_gone(void **state)
{
	volatile int *ready = help_shared(4096);
	struct process process;
	struct tracee *tracee = help_seize(&process, help_fork(leader_leaves, (void *)(uintptr_t)ready));
	struct procfs_stat stat = {.state = 'S'};
	struct procfs_maps maps;
	int status, code;
	int64_t ret;

	assert_ok(stops_resume(tracee, STOPS_CONT));
	*ready = 1;
	while (process.ntracees < 4 || stat.state != 'Z') {
		while ((code = stops_wait(&process, -1, WNOHANG, &tracee, &status)) == 1)
			assert_ok(stops_resume(tracee, STOPS_CONT));
		assert_ok(procfs_stat_read(process.pid, 0, &stat, err));
		usleep(1000);
	}
	freeze_begin(&process);
	while (!freeze_settled(&process)) {
		tracee = next(&process);
		if (!freeze_hold(tracee))
			assert_ok(stops_resume(tracee, STOPS_CONT));
	}
	assert_int_equal(process.ntracees, 4);
	assert_ok(procfs_maps_read(process.pid, false, &maps, err));
	assert_true(maps.n > 3);
	procfs_maps_free(&maps);
	tracee = process.tracees->next;
	assert_ok(remote_call(tracee, &ret, err, SYS_gettid, remote_args(0)));
	assert_int_equal(ret, tracee->tid);
	assert_ok(inject_open(tracee, 4096, (struct taddr){0}, err));
	assert_ok(inject_withdraw(tracee, err));
	thaw_process(&process);
	help_kill(&process);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_classify),       cmocka_unit_test(test_group_stop),
		cmocka_unit_test(test_threads),	       cmocka_unit_test(test_processes),
		cmocka_unit_test(test_exec_by_thread), cmocka_unit_test(test_leader_gone),
	};

	alarm(60);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
