/* Remote calls, injection and batches on real small children. */
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include "scip/dump/freeze.h"
#include "scip/tracee/regs.h"
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

static struct tracee *next(struct process *process)
{
	struct tracee *tracee;
	int status;

	assert_int_equal(stops_wait(process, process->pid, 0, &tracee, &status), 1);
	return tracee;
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

/* Everything that is done to a process at a stop. */
static void use(struct process *process, struct tracee *tracee)
{
	assert_int_equal(call_getpid(tracee), process->pid);
	run_batch(process, tracee, 20);
	assert_int_equal(call_getpid(tracee), process->pid);
	assert_ok(inject_withdraw(tracee, err));
}

static void test_group_stop(void **state)
{
	struct process process;
	struct tracee *tracee = help_seize(&process, help_fork(wait_for_ever, NULL));

	assert_ok(stops_resume(tracee, STOPS_CONT));
	kill(process.pid, SIGSTOP);
	assert_int_equal(next(&process)->signal, SIGSTOP);
	assert_ok(stops_resume(tracee, STOPS_CONT));
	assert_int_equal(next(&process)->stop, TRACEE_GROUP_STOP);
	use(&process, tracee);
	assert_int_equal(tracee->stop, TRACEE_GROUP_STOP);
	assert_ok(stops_resume(tracee, STOPS_CONT)); /* PTRACE_LISTEN is allowed only in a real group-stop */
	kill(process.pid, SIGCONT);
	assert_int_equal(next(&process)->stop, TRACEE_EVENT_STOP);
	help_kill(&process);
}

/* ---- a signal being delivered ---- */

struct seen {
	volatile int count, value, code, after;
	volatile pid_t sender;
};
static struct seen *seen;

static void note(int signal, siginfo_t *info, void *context)
{
	seen->count++;
	seen->value = info->si_value.sival_int;
	seen->code = info->si_code;
	seen->sender = info->si_pid;
}

static void counts_signals(void *arg)
{
	struct sigaction action = {.sa_sigaction = note, .sa_flags = SA_SIGINFO | SA_RESTART};
	struct timespec ts = {.tv_sec = 100};

	seen = arg;
	sigaction(SIGUSR1, &action, NULL);
	sigaction(SIGRTMIN, &action, NULL);
	seen->after = 1;
	while (seen->count < 2)
		nanosleep(&ts, NULL);
	_exit(7);
}

static void signal_in_hand(int signal, bool batch)
{
	struct seen *shared = help_shared(4096);
	union sigval value = {.sival_int = 4711};
	struct process process;
	struct tracee *tracee = help_seize(&process, help_fork(counts_signals, shared));
	int status;

	assert_ok(stops_resume(tracee, STOPS_CONT));
	while (!shared->after)
		usleep(100);
	help_wait_asleep(process.pid);
	for (int i = 1; i <= 2; i++) {
		assert_int_equal(sigqueue(process.pid, signal, value), 0);
		assert_int_equal(next(&process)->signal, signal);
		if (batch)
			use(&process, tracee);
		else
			assert_int_equal(call_getpid(tracee), process.pid);
		assert_int_equal(tracee->stop, TRACEE_SIGNAL_DELIVERY_STOP);
		assert_int_equal(tracee->signal, signal);
		assert_ok(stops_resume(tracee, STOPS_CONT));
		for (int j = 0; j < 5000 && shared->count < i; j++)
			usleep(1000);
		assert_int_equal(shared->count, i);
		assert_int_equal(shared->value, 4711);
		assert_int_equal(shared->code, SI_QUEUE);
		assert_int_equal(shared->sender, getpid());
	}
	status = help_run_to_end(&process);
	assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 7);
}

static void test_signal_in_hand(void **state)
{
	signal_in_hand(SIGUSR1, false);
	signal_in_hand(SIGUSR1, true);
	signal_in_hand(SIGRTMIN, false);
	signal_in_hand(SIGRTMIN, true);
}

/* SIGTRAP ignored, blocked or caught: our int3 changes none of it. */
static void ignores_trap(void *arg)
{
	struct sigaction action;

	signal(SIGTRAP, SIG_IGN);
	*(volatile int *)arg = 1;
	while (*(volatile int *)arg == 1)
		usleep(1000);
	sigaction(SIGTRAP, NULL, &action);
	_exit(action.sa_handler == SIG_IGN ? 3 : 4);
}

static void test_ignored_trap(void **state)
{
	volatile int *step = help_shared(4096);
	struct process process;
	struct tracee *tracee;
	pid_t pid = help_fork(ignores_trap, (void *)(uintptr_t)step);

	while (!*step)
		usleep(100);
	tracee = help_seize(&process, pid);
	use(&process, tracee);
	assert_ok(stops_resume(tracee, STOPS_CONT));
	*step = 2;
	assert_int_equal(WEXITSTATUS(help_run_to_end(&process)), 3);
}

/* ---- seccomp, exec, fork, threads ---- */

static void traps_getppid(void *arg)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getppid, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRACE),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = {.len = 4, .filter = code};

	raise(SIGSTOP);
	prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
	prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
	_exit(syscall(SYS_getppid) == 12345 ? 9 : 10);
}

/* Starts a child that stops itself, seizes it and runs it to this stop (`event` -1: any). */
static struct tracee *run_to(struct process *process, void (*body)(void *), int stop, int event)
{
	pid_t pid = help_fork(body, NULL);
	struct tracee *tracee;
	int status;

	waitpid(pid, &status, WUNTRACED);
	tracee = help_seize(process, pid);
	kill(pid, SIGCONT);
	do {
		assert_ok(stops_resume(tracee, STOPS_CONT));
		next(process);
	} while ((int)tracee->stop != stop || (event >= 0 && tracee->event != event));
	return tracee;
}

/* A trapped call with a result of ours; our own calls, some of them trapped too, before it returns. */
static void test_seccomp_stop(void **state)
{
	struct process process;
	struct tracee *tracee = run_to(&process, traps_getppid, TRACEE_SECCOMP_STOP, -1);

	assert_ok(regs_set_call(tracee, -1));
	assert_ok(regs_set_ret(tracee, 12345));
	use(&process, tracee);
	assert_ok(stops_resume(tracee, STOPS_CONT));
	assert_int_equal(WEXITSTATUS(help_run_to_end(&process)), 9);
}

static void executes(void *arg)
{
	raise(SIGSTOP);
	execl("/bin/sh", "sh", "-c", "exit 21", NULL);
	_exit(1);
}

static void test_exec_event(void **state)
{
	struct process process;
	struct tracee *tracee = run_to(&process, executes, TRACEE_EVENT_STOP, PTRACE_EVENT_EXEC);

	use(&process, tracee);
	assert_int_equal(tracee->stop, TRACEE_SYSCALL_EXIT_STOP);
	assert_ok(stops_resume(tracee, STOPS_CONT));
	assert_int_equal(WEXITSTATUS(help_run_to_end(&process)), 21);
}

/* The husk of a restore: execve() as a remote call. */
static void test_exec_for_us(void **state)
{
	struct process process;
	struct tracee *tracee = help_seize(&process, help_fork(wait_for_ever, NULL));
	struct user_regs_struct regs;
	struct batch *batch;
	struct taddr path, option, text, argv;
	int64_t ret;

	assert_ok(inject_open(tracee, 4096, (struct taddr){0}, err));
	assert_ok(batch_begin(&process, &batch, err));
	assert_ok(batch_data(batch, "/bin/sh", 8, &path));
	assert_ok(batch_data(batch, "-c", 3, &option));
	assert_ok(batch_data(batch, "exit 22", 8, &text));
	assert_ok(batch_data(batch, (const uint64_t[]){path.a, option.a, text.a, 0}, 32, &argv));
	assert_ok(remote_call(tracee, &ret, err, SYS_execve, remote_args(path.a, argv.a, 0)));
	assert_int_equal(ret, 0);
	assert_null(process.area);
	assert_ok(regs_get(tracee, &regs));
	assert_int_equal(regs.rax, 0);
	assert_int_equal(call_getpid(tracee), process.pid);
	assert_ok(stops_resume(tracee, STOPS_CONT));
	assert_int_equal(WEXITSTATUS(help_run_to_end(&process)), 22);
}

static void test_fork_for_us(void **state)
{
	volatile unsigned long *n = help_shared(4096);
	struct process process, other = {.pid = 0};
	struct tracee *tracee = help_seize(&process, help_fork(spin, (void *)(uintptr_t)n)), *child;
	struct user_regs_struct parents, childs;
	struct procfs_stat stat;
	int status;

	for (int i = 0; i < 20; i++) {
		assert_ok(remote_fork(tracee, &other.pid, err, SYS_clone, remote_args(SIGCHLD)));
		assert_int_equal(process_add_tracee(&other, other.pid, &child), 0);
		assert_ok(regs_get(tracee, &parents));
		assert_ok(regs_get(child, &childs));
		assert_memory_equal(&parents, &childs, sizeof(parents));
		assert_ok(procfs_stat_read(other.pid, 0, &stat, err));
		assert_int_equal(stat.ppid, process.pid);
		kill(other.pid, SIGKILL);
		assert_int_equal(waitpid(other.pid, &status, __WALL), other.pid);
		process_clear(&other);
	}
	assert_ok(stops_resume(tracee, STOPS_CONT));
	help_kill(&process);
}

static void test_make_threads(void **state)
{
	enum { THREADS = 200 };
	struct process process;
	struct tracee *leader = help_seize(&process, help_fork(wait_for_ever, NULL));
	const uint64_t flags =
		CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM;
	struct batch *batch;
	int64_t ret;

	assert_ok(inject_open(leader, THREADS * sizeof(struct inject_call), (struct taddr){0}, err));
	assert_ok(batch_begin(&process, &batch, err));
	for (int i = 0; i < THREADS; i++)
		assert_int_equal(batch_add(batch, INJECT_CALL_THREAD, SYS_clone, remote_args(flags)), i);
	assert_ok(batch_run(batch, leader, err));
	assert_int_equal(process.ntracees, THREADS + 1);
	for (struct tracee *t = process.tracees->next; t; t = t->next) {
		assert_int_equal(t->stop, TRACEE_EVENT_STOP);
		assert_ok(remote_call(t, &ret, err, SYS_gettid, remote_args(0)));
		assert_int_equal(ret, t->tid);
	}
	batch_end(batch);
	help_kill(&process);
}

/* ---- errors ---- */

static void test_failing_batch(void **state)
{
	struct process process;
	struct tracee *tracee = help_seize(&process, help_fork(wait_for_ever, NULL));
	struct err told = ERR_INIT;
	struct batch *batch;

	assert_ok(inject_open(tracee, 4096, (struct taddr){0}, err));
	assert_ok(batch_begin(&process, &batch, err));
	assert_int_equal(batch_add(batch, 0, SYS_getpid, remote_args(0)), 0);
	assert_int_equal(batch_add(batch, 0, SYS_close, remote_args(9999)), 1);
	assert_int_equal(batch_add(batch, 0, SYS_getpid, remote_args(0)), 2);
	assert_int_equal(batch_run(batch, tracee, &told), -EBADF);
	assert_non_null(strstr(told.text, "close(0x270f"));
	assert_int_equal(batch_call(batch, 2)->ret, 0);
	while (batch_add(batch, 0, SYS_getpid, remote_args(0)) >= 0)
		;
	assert_int_equal(batch_add(batch, 0, SYS_getpid, remote_args(0)), -ENOSPC);
	batch_end(batch);
	help_kill(&process);
}

static void has_no_descriptor_left(void *arg)
{
	struct rlimit limit = {.rlim_cur = 64, .rlim_max = 64 + *(volatile int *)arg};

	setrlimit(RLIMIT_NOFILE, &limit);
	while (dup(0) >= 0)
		;
	*(volatile int *)arg = -1;
	wait_for_ever(NULL);
}

static int inject_without_descriptors(int more)
{
	volatile int *step = help_shared(4096);
	struct process process;
	struct tracee *tracee;
	struct rlimit limit;
	struct err err = ERR_INIT;
	int code;
	pid_t pid;

	*step = more;
	pid = help_fork(has_no_descriptor_left, (void *)(uintptr_t)step);
	while (*step != -1)
		usleep(100);
	tracee = help_seize(&process, pid);
	code = inject_open(tracee, 4096, (struct taddr){0}, &err);
	assert_int_equal(prlimit(pid, RLIMIT_NOFILE, NULL, &limit), 0);
	assert_int_equal(limit.rlim_cur, 64);
	if (code < 0)
		assert_non_null(strstr(err.text, "descriptors"));
	help_kill(&process);
	return code;
}

static void test_no_descriptors(void **state)
{
	assert_int_equal(inject_without_descriptors(10), 0);
	assert_int_equal(inject_without_descriptors(0), -EMFILE);
}

/* The process is killed during a remote call. */
static void test_killed(void **state)
{
	struct process process;
	struct tracee *tracee = help_seize(&process, help_fork(wait_for_ever, NULL));
	struct err err = ERR_INIT;
	int64_t ret;

	assert_int_equal(
		remote_call(tracee, &ret, &err, SYS_kill, remote_args((uint64_t)process.pid, SIGKILL)),
		-ESRCH);
	assert_int_equal(next(&process)->stop, TRACEE_EXITED);
	assert_int_equal(process.exit_status, SIGKILL);
	process_clear(&process);
}

/* ---- programs ---- */

static void run_program(void *arg)
{
	char *const *argv = arg;
	int null = open("/dev/null", O_RDWR);

	dup2(null, 1);
	dup2(null, 2);
	execvp(argv[0], argv);
	_exit(127);
}

static bool build(const char *command, const char *name, const char *source, const char *program)
{
	char line[512];
	FILE *file = fopen(name, "w");

	fputs(source, file);
	fclose(file);
	snprintf(line, sizeof(line), "%s >/dev/null 2>&1", command);
	return system(line) == 0 && access(program, X_OK) == 0;
}

static void run_quietly(const char *what, const char *directory)
{
	char line[512];

	snprintf(line, sizeof(line), "%s %s >/dev/null 2>&1", what, directory);
	assert_int_equal(system(line), 0);
}

/* Attaches the existing threads. */
static int seize_one(int tid, void *arg)
{
	struct process *process = arg;
	struct tracee *tracee;

	if (process_find_tracee(process, tid))
		return 0;
	/* The thread may come from an attached one, or have ended. */
	(void)!stops_seize(process, tid, &tracee, NULL);
	return 0;
}

static void seize_threads(struct process *process)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/%d/task", process->pid);
	for (unsigned before = 0; before != process->ntracees;) {
		before = process->ntracees;
		assert_int_equal(procfs_each_number(path, seize_one, process), 0);
	}
}

/* Handles a stop as a supervisor does. False when the process has ended. */
static bool pass(struct process *process, struct tracee *tracee)
{
	if (tracee->stop == TRACEE_EXITED) {
		if (tracee->tid == process->pid)
			return false;
		process_remove_tracee(process, tracee);
	} else if (!process->freezing || !freeze_hold(tracee)) {
		(void)!stops_resume(tracee, STOPS_CONT);
	}
	return true;
}

/* Frozen, used and thawed again and again; then the program must end as usual. */
static void torment(const char *const *argv, int cycles)
{
	struct process process = {.pid = help_fork(run_program, (void *)(uintptr_t)argv)};
	struct tracee *tracee;
	int status, code;
	bool alive = true;

	usleep(20000);
	assert_ok(stops_seize(&process, process.pid, &tracee, err));
	seize_threads(&process);
	for (struct tracee *t = process.tracees; t; t = t->next)
		assert_ok(stops_resume(t, STOPS_CONT));
	for (int i = 0; i < cycles && alive; i++) {
		freeze_begin(&process);
		while (alive && !freeze_settled(&process)) {
			assert_int_equal(stops_wait(&process, -1, 0, &tracee, &status), 1);
			alive = pass(&process, tracee);
		}
		if (!alive)
			break;
		run_batch(&process, process.tracees, 50);
		assert_ok(inject_withdraw(process.tracees, err));
		thaw_process(&process);
		for (int j = 0; j < 20 && alive; j++) {
			while (alive && (code = stops_wait(&process, -1, WNOHANG, &tracee, &status)) == 1)
				alive = pass(&process, tracee);
			usleep(500);
		}
	}
	while (alive && stops_wait(&process, -1, 0, &tracee, &status) == 1)
		alive = pass(&process, tracee);
	if (!WIFEXITED(process.exit_status) || WEXITSTATUS(process.exit_status) != 0)
		fail_msg("%s ended with status %#x", argv[0], process.exit_status);
	process_clear(&process);
}

static void test_programs(void **state)
{
	static const char c_source[] =
		"#include <pthread.h>\n#include <unistd.h>\n#include <stdio.h>\n"
		"static long sum; static pthread_mutex_t m = PTHREAD_MUTEX_INITIALIZER;\n"
		"static void *run(void *a) { for (int i = 0; i < 1000; i++) { pthread_mutex_lock(&m); sum++;"
		" pthread_mutex_unlock(&m); usleep(100); } return 0; }\n"
		"int main(int argc, char **argv) { enum { N = 200 }; int n = argc > 1 ? N : 4; pthread_t "
		"t[N];\n"
		"for (int i = 0; i < n; i++) pthread_create(&t[i], 0, run, 0);\n"
		"for (int i = 0; i < n; i++) pthread_join(t[i], 0);\n return sum == 1000L * n ? 0 : 1; }\n";
	static const char go_source[] =
		"package main\nimport (\"fmt\"; \"os\"; \"sync\"; \"time\")\n"
		"func main() { var w sync.WaitGroup; c := make(chan int, 10); s := 0\n"
		"for i := 0; i < 20; i++ { w.Add(1); go func() { defer w.Done(); for j := 0; j < 200; j++ {"
		" time.Sleep(2 * time.Millisecond); c <- 1; x := make([]byte, 10000); x[5] = 1 } }() }\n"
		"go func() { w.Wait(); close(c) }()\nfor v := range c { s += v }\n"
		"fmt.Println(s); if s != 4000 { os.Exit(1) } }\n";
	char directory[] = "/tmp/pbeam-remote-test-XXXXXX";

	assert_non_null(mkdtemp(directory));
	assert_int_equal(chdir(directory), 0);
	if (build("gcc -O1 -pthread -o dynamic p.c", "p.c", c_source, "dynamic")) {
		torment((const char *[]){"./dynamic", NULL}, 20);
		torment((const char *[]){"./dynamic", "many", NULL}, 10);
	}
	if (build("gcc -O1 -static -pthread -o static p.c", "p.c", c_source, "static"))
		torment((const char *[]){"./static", NULL}, 20);
	if (build("CGO_ENABLED=0 timeout 40 go build -o gostatic p.go", "p.go", go_source, "gostatic"))
		torment((const char *[]){"./gostatic", NULL}, 20);
	assert_int_equal(chdir("/"), 0);
	run_quietly("rm -rf", directory);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_call_while_running),
		cmocka_unit_test(test_batch_of_5000),
		cmocka_unit_test(test_group_stop),
		cmocka_unit_test(test_signal_in_hand),
		cmocka_unit_test(test_ignored_trap),
		cmocka_unit_test(test_seccomp_stop),
		cmocka_unit_test(test_exec_event),
		cmocka_unit_test(test_exec_for_us),
		cmocka_unit_test(test_fork_for_us),
		cmocka_unit_test(test_make_threads),
		cmocka_unit_test(test_failing_batch),
		cmocka_unit_test(test_no_descriptors),
		cmocka_unit_test(test_killed),
		cmocka_unit_test(test_programs),
	};

	alarm(110);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
