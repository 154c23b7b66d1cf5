/* Numbers in /proc without a tracee: paths, texts, siginfo; and the records for the dump. */

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "namespace/record.h"
#include "namespace/table.h"
#include "scip/syscall/proc_path.h"
#include "tests/unit/unit.h"

static char runtime[64];

/* Virtual 100 is 5000, 300 is 70. */
static int set_up(void **state)
{
	struct names *names;

	snprintf(runtime, sizeof(runtime), "/tmp/pbeam-proc-test-XXXXXX");
	assert_non_null(mkdtemp(runtime));
	setenv("XDG_RUNTIME_DIR", runtime, 1);
	assert_int_equal(names_open(&names, NULL), 0);
	assert_int_equal(names_number_bind(names, (struct vpid){100}, (struct rpid){5000}, (struct rpid){1}),
			 0);
	assert_int_equal(names_number_bind(names, (struct vpid){300}, (struct rpid){70}, (struct rpid){1}),
			 0);
	*state = names;
	return 0;
}

static int tear_down(void **state)
{
	char path[96];

	names_close(*state);
	snprintf(path, sizeof(path), "%s/pbeam/" TABLE_FILE ".%u", runtime, TABLE_VERSION);
	unlink(path);
	snprintf(path, sizeof(path), "%s/pbeam/record", runtime);
	rmdir(path);
	snprintf(path, sizeof(path), "%s/pbeam", runtime);
	rmdir(path);
	return rmdir(runtime);
}

static void test_walk(void **state)
{
	static const struct {
		const char *path, *text;
		enum proc_leaf leaf;
		int pid, tid;
		bool changed;
	} cases[] = {
		{"", "", PROC_ROOT, 0, 0, false},
		{"/", "/", PROC_ROOT, 0, 0, false},
		{"/100", "/5000", PROC_OTHER, 5000, 0, true},
		{"/100/", "/5000/", PROC_OTHER, 5000, 0, true},
		{"//100//stat", "//5000//stat", PROC_STAT, 5000, 0, true},
		{"/./100/./status", "/./5000/./status", PROC_STATUS, 5000, 0, true},
		{"/100/task", "/5000/task", PROC_TASK, 5000, 0, true},
		{"/100/task/300/stat", "/5000/task/70/stat", PROC_STAT, 5000, 70, true},
		{"/100/task/300/children", "/5000/task/70/children", PROC_CHILDREN, 5000, 70, true},
		{"/100/fd/300", "/5000/fd/300", PROC_OTHER, 5000, 0, true},
		{"/100/net/stat/300", "/5000/net/stat/300", PROC_OTHER, 5000, 0, true},
		{"/self", "/self", PROC_SELF, 42, 0, false},
		{"/self/stat", "/self/stat", PROC_STAT, 42, 0, false},
		{"/self/task/300/stat", "/self/task/70/stat", PROC_STAT, 42, 70, true},
		{"/self/exe", "/self/exe", PROC_OTHER, 42, 0, false},
		{"/thread-self", "/thread-self", PROC_THREAD_SELF, 42, 43, false},
		{"/thread-self/status", "/thread-self/status", PROC_STATUS, 42, 43, false},
		{"/meminfo", "/meminfo", PROC_NOTHING, 0, 0, false},
		{"/sys/100/stat", "/sys/100/stat", PROC_NOTHING, 0, 0, false},
		{"/200/stat", "/200/stat", PROC_STAT, 200, 0, false},
		/* the real number of a process with another name: no process */
		{"/5000/stat", "/2147483647/stat", PROC_STAT, NAMES_NOBODY, 0, true},
		{"/100x/stat", "/100x/stat", PROC_NOTHING, 0, 0, false},
		{"/99999999999999999999", "/99999999999999999999", PROC_NOTHING, 0, 0, false},
		{"/self/../100", "/self/../100", PROC_NOTHING, 42, 0, false},
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct proc_path out = {.leaf = PROC_ROOT};
		struct proc_walk walk = {.names = *state, .self_pid = 42, .self_tid = 43, .out = &out};

		assert_int_equal(proc_walk(&walk, cases[i].path, true), 0);
		if (out.leaf != cases[i].leaf || strcmp(out.text, cases[i].text) != 0 ||
		    out.changed != cases[i].changed)
			fail_msg("%s: %s, leaf %d", cases[i].path, out.text, out.leaf);
		assert_int_equal(out.pid, cases[i].pid);
		assert_int_equal(out.tid, cases[i].tid);
	}
}

static void test_walk_from_directory(void **state)
{
	struct proc_path out = {.leaf = PROC_ROOT};
	struct proc_walk walk = {.names = *state, .self_pid = 42, .self_tid = 43, .out = &out};

	/* the kernel's own text of a directory has real numbers, which stay */
	assert_int_equal(proc_walk(&walk, "/5000/task", false), 0);
	assert_int_equal(out.pid, 5000);
	assert_int_equal(proc_walk(&walk, "300/stat", true), 0);
	assert_string_equal(out.text, "70/stat");
	assert_int_equal(out.leaf, PROC_STAT);
	assert_int_equal(out.tid, 70);
}

static void test_walk_too_long(void **state)
{
	struct proc_path out = {.leaf = PROC_ROOT};
	struct proc_walk walk = {.names = *state, .out = &out};
	char path[2 * CALL_SLOT_BYTES];

	memset(path, 'x', sizeof(path));
	path[0] = '/';
	path[sizeof(path) - 1] = 0;
	assert_int_equal(proc_walk(&walk, path, true), -ENAMETOOLONG);
	memset(path, '/', sizeof(path) - 1);
	assert_int_equal(proc_walk(&walk, path, true), -ENAMETOOLONG);
}

static void test_texts(void **state)
{
	char out[512];

	assert_true(proc_text_stat(*state, "5000 (a) b (c)) S 70 5000 1 34816 70 4194304 100\n", out,
				   sizeof(out)) > 0);
	assert_string_equal(out, "100 (a) b (c)) S 300 100 1 34816 300 4194304 100\n");
	assert_int_equal(proc_text_stat(*state, "5000 (abc) S 70\n", out, 8), -ENOSPC);
	assert_int_equal(proc_text_stat(*state, "nonsense", out, sizeof(out)), -EBADMSG);
	assert_int_equal(proc_text_stat(*state, ")(", out, sizeof(out)), -EBADMSG);
	assert_true(proc_text_status(*state,
				     "Name:\tPid:\nUmask:\t0022\nTgid:\t5000\nNgid:\t0\nPid:\t70\nPPid:"
				     "\t1\nTracerPid:\t77\n"
				     "FDSize:\t70\nNSpid:\t5000\t70\nNSsid:\t100",
				     out, sizeof(out)) > 0);
	/* 100 is the real number of a stranger here, and a virtual number of ours: no process */
	assert_string_equal(
		out, "Name:\tPid:\nUmask:\t0022\nTgid:\t100\nNgid:\t0\nPid:\t300\nPPid:\t1\nTracerPid:\t0\n"
		     "FDSize:\t70\nNSpid:\t100\t300\nNSsid:\t0");
	assert_true(proc_text_numbers(*state, "5000 70 9 ", out, sizeof(out)) > 0);
	assert_string_equal(out, "100 300 9 ");
	assert_int_equal(proc_text_numbers(*state, "", out, sizeof(out)), 0);
}

static void test_siginfo(void **state)
{
	siginfo_t info;

	memset(&info, 0, sizeof(info));
	info.si_signo = SIGCHLD;
	info.si_code = CLD_EXITED;
	info.si_pid = 5000;
	assert_true(syscall_siginfo_to_virtual(*state, &info));
	assert_int_equal(info.si_pid, 100);
	assert_true(syscall_siginfo_to_real(*state, &info));
	assert_int_equal(info.si_pid, 5000);
	info.si_signo = SIGSEGV;
	info.si_code = SEGV_MAPERR;
	assert_false(syscall_siginfo_to_virtual(*state, &info));
	info.si_code = SI_QUEUE;
	assert_true(syscall_siginfo_to_virtual(*state, &info));
	info.si_code = SI_TIMER;
	info.si_pid = 5000; /* a timer's number */
	assert_false(syscall_siginfo_to_virtual(*state, &info));
	info.si_code = SI_USER;
	info.si_pid = 0;
	assert_false(syscall_siginfo_to_virtual(*state, &info));
}

static void test_records(void **state)
{
	const struct rpid keeper = {77};
	const struct vpid parent = {100}, child = {101};
	uint64_t filter[3] = {1, 2, 3};
	char path[64];
	void *got;
	size_t len;

	record_forget_job(keeper);
	assert_int_equal(record_watch_find(keeper, 1, 2, path, sizeof(path)), -ENOENT);
	assert_int_equal(record_watch_add(keeper, 0xfe00001, 2, "/a \n\\b"), 0);
	assert_int_equal(record_watch_add(keeper, 0xfe00001, 2, "/c"), 0);
	assert_int_equal(record_watch_add(keeper, 0xfe00001, 3, "/a \n\\b"), 0);
	assert_int_equal(record_watch_find(keeper, 0xfe00001, 2, path, sizeof(path)), 0);
	assert_string_equal(path, "/c");
	assert_int_equal(record_watch_find(keeper, 0xfe00001, 3, path, sizeof(path)), 0);
	assert_string_equal(path, "/a \n\\b");
	assert_int_equal(record_watch_find(keeper, 0xfe00001, 3, path, 3), -ENAMETOOLONG);
	assert_int_equal(record_watch_find(keeper, 0xfe00002, 3, path, sizeof(path)), -ENOENT);

	assert_int_equal(record_filter_get(keeper, parent, 0, &got, &len), 0);
	assert_int_equal(record_filter_inherit(keeper, parent, child), 0);
	assert_int_equal(record_filter_add(keeper, parent, filter, 16), 0);
	assert_int_equal(record_filter_inherit(keeper, parent, child), 0);
	assert_int_equal(record_filter_add(keeper, parent, filter, 24), 0);
	assert_int_equal(record_filter_add(keeper, parent, filter, 0), -EINVAL);
	assert_int_equal(record_filter_get(keeper, parent, 1, &got, &len), 1);
	assert_int_equal(len, 24);
	assert_memory_equal(got, filter, len);
	free(got);
	assert_int_equal(record_filter_get(keeper, parent, 2, &got, &len), 0);
	assert_int_equal(record_filter_get(keeper, child, 0, &got, &len), 1);
	assert_int_equal(len, 16);
	free(got);
	assert_int_equal(record_filter_get(keeper, child, 1, &got, &len), 0);
	record_filter_forget(keeper, child);
	assert_int_equal(record_filter_get(keeper, child, 0, &got, &len), 0);
	record_forget_job(keeper);
	assert_int_equal(record_filter_get(keeper, parent, 0, &got, &len), 0);
}

static void test_terminals(void **state)
{
	struct rpid keeper = {4242};

	assert_int_equal(pts_number("/dev/pts/7"), 7);
	assert_int_equal(pts_number("//dev/./pts//0/"), 0);
	assert_int_equal(pts_number("/dev/pts/07"), -1);
	assert_int_equal(pts_number("/dev/pts/ptmx"), -1);
	assert_int_equal(pts_number("/dev/pts"), -1);
	assert_int_equal(pts_number("/dev/pts/7/x"), -1);
	assert_int_equal(pts_number("/dev/pts/7777777777"), -1);
	assert_int_equal(pts_number("dev/pts/7"), -1);
	assert_int_equal(record_pts_real(keeper, 3), 3);
	assert_int_equal(record_pts_bind(*state, keeper, 3, 7), 0);
	assert_int_equal(record_pts_real(keeper, 3), 7);
	assert_int_equal(record_pts_virtual(*state, keeper, 7), 3);
	assert_int_equal(record_pts_real((struct rpid){4243}, 3), 3);
	/* 7 is the other one's, and 3 is not the name of the terminal with that number */
	assert_int_equal(record_pts_real(keeper, 7), INT32_MAX);
	assert_true(record_pts_virtual(*state, keeper, 3) >= 100000);
	assert_int_equal(record_pts_real(keeper, record_pts_virtual(*state, keeper, 3)), 3);
	assert_int_equal(record_pts_bind(*state, keeper, 3, 3), 0);
	assert_int_equal(record_pts_virtual(*state, keeper, 3), 3);
	assert_int_equal(record_pts_bind(*state, keeper, -1, 3), -EINVAL);
	record_forget_job(keeper);
	assert_int_equal(record_pts_real(keeper, 3), 3);
}

static void test_made_objects(void **state)
{
	struct rpid keeper = {4242};
	int32_t *ids;
	size_t n;

	assert_int_equal(record_ipc_list(keeper, NAMES_IPC_SEM, &ids, &n), 0);
	assert_int_equal(n, 0);
	assert_int_equal(record_ipc_add(keeper, NAMES_IPC_SEM, 5), 0);
	assert_int_equal(record_ipc_add(keeper, NAMES_IPC_MSG, 5), 0);
	assert_int_equal(record_ipc_add(keeper, NAMES_IPC_SEM, 0), 0);
	assert_int_equal(record_ipc_add(keeper, NAMES_IPC_SEM, 5), 0);
	assert_int_equal(record_ipc_list(keeper, NAMES_IPC_SEM, &ids, &n), 0);
	assert_int_equal(n, 2);
	assert_true(ids[0] == 0 && ids[1] == 5);
	free(ids);
	assert_int_equal(record_peer_find(keeper, 77).n, 0);
	assert_int_equal(record_peer_add(keeper, 77, (struct vpid){100}), 0);
	assert_int_equal(record_peer_add(keeper, 77, (struct vpid){300}), 0);
	assert_int_equal(record_peer_find(keeper, 77).n, 300);
	record_peer_forget(keeper);
	assert_int_equal(record_peer_find(keeper, 77).n, 0);
	record_forget_job(keeper);
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
	const struct CMUnitTest tests[] = {T(test_walk),	  T(test_walk_from_directory),
					   T(test_walk_too_long), T(test_texts),
					   T(test_siginfo),	  T(test_records),
					   T(test_terminals),	  T(test_made_objects)};

	alarm(60);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
