/* base/: the error context, whole reads and writes, private directories. */

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/dirs.h"
#include "base/err.h"
#include "base/io.h"
#include "base/log.h"
#include "base/logout.h"
#include "base/text.h"
#include "base/u64_map.h"
#include "tests/unit/unit.h"

static int set_up(void **state)
{
	char template[] = "/tmp/base-test-XXXXXX";
	char *dir = mkdtemp(template);

	*state = dir ? strdup(dir) : NULL;
	return *state ? chdir(*state) : -1;
}

static int tear_down(void **state)
{
	char command[PATH_MAX + 16];

	snprintf(command, sizeof(command), "rm -rf '%s'", (char *)*state);
	free(*state);
	return chdir("/") || system(command);
}

static void test_err_chain(void **state)
{
	struct err err = ERR_INIT;

	errno = EACCES;
	assert_int_equal(err_sys(&err, "read %s", "pagemap"), -EACCES);
	assert_int_equal(err_wrap(&err, -EIO, "dump pid %d", 41), -EACCES);
	assert_string_equal(err.text, "dump pid 41: read pagemap: Permission denied");
	err_clear(&err);
	assert_int_equal(err_wrap(&err, -ENOENT, "open"), -ENOENT);
	assert_string_equal(err.text, "open: No such file or directory");
	assert_int_equal(err_set(NULL, -EINVAL, "nobody reads this"), -EINVAL);
	assert_int_equal(err_wrap(NULL, -EINVAL, "nor this"), -EINVAL);
}

/* Text that does not fit is cut, and stays a string. */
static void test_err_long(void **state)
{
	char words[3 * ERR_TEXT_MAX];
	struct err err = ERR_INIT;

	memset(words, 'w', sizeof(words));
	words[sizeof(words) - 1] = 0;
	err_set(&err, -EIO, "%s", words);
	assert_int_equal(strlen(err.text), ERR_TEXT_MAX - 1);
	err_wrap(&err, -EIO, "short");
	assert_int_equal(strlen(err.text), ERR_TEXT_MAX - 1);
	assert_memory_equal(err.text, "short: www", 10);
	err_wrap(&err, -EIO, "%s", words);
	assert_true(strlen(err.text) < ERR_TEXT_MAX);
	err_code(&err, -EIO, "%s", words);
	assert_int_equal(strlen(err.text), ERR_TEXT_MAX - 1);
}

static void test_whole_reads(void **state)
{
	char data[10000], back[10000];
	int fd = open("file", O_RDWR | O_CREAT | O_EXCL, 0600);

	for (size_t i = 0; i < sizeof(data); i++)
		data[i] = (char)(i * 7);
	assert_int_equal(io_write_full(fd, data, sizeof(data)), 0);
	assert_int_equal(io_pread_full(fd, back, sizeof(back), 0), sizeof(data));
	assert_memory_equal(data, back, sizeof(data));
	assert_int_equal(io_pread_full(fd, back, sizeof(back), 9000), 1000);
	assert_int_equal(io_pwrite_full(fd, "over", 4, 9998), 0);
	assert_int_equal(lseek(fd, 0, SEEK_END), 10002);
	assert_int_equal(io_read_full(fd, back, 1), 0);
	close(fd);
	assert_int_equal(io_read_full(fd, back, 1), -EBADF);
}

static void test_slurp(void **state)
{
	size_t sizes[] = {0, 1, 4095, 4096, 4097, 100000}, len;
	char *text;

	for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
		int fd = open("slurped", O_RDWR | O_CREAT | O_TRUNC, 0600);

		assert_int_equal(ftruncate(fd, (off_t)sizes[i]), 0);
		assert_int_equal(io_slurp(AT_FDCWD, "slurped", 1 << 20, &text, &len), 0);
		assert_int_equal(len, sizes[i]);
		assert_int_equal(text[len], 0);
		free(text);
		close(fd);
	}
	assert_int_equal(io_slurp(AT_FDCWD, "slurped", 8192, &text, NULL), -EFBIG);
	assert_int_equal(io_slurp(AT_FDCWD, "missing", 8192, &text, NULL), -ENOENT);
	assert_int_equal(io_slurp(AT_FDCWD, "/proc/self/status", 1 << 20, &text, &len), 0);
	assert_memory_equal(text, "Name:", 5);
	free(text);
}

static void test_readlink(void **state)
{
	char buf[8];

	assert_int_equal(symlink("1234567", "fits"), 0);
	assert_int_equal(symlink("12345678", "does-not"), 0);
	assert_int_equal(io_readlink(AT_FDCWD, "fits", buf, sizeof(buf)), 0);
	assert_string_equal(buf, "1234567");
	assert_int_equal(io_readlink(AT_FDCWD, "does-not", buf, sizeof(buf)), -ENAMETOOLONG);
	assert_int_equal(io_readlink(AT_FDCWD, "missing", buf, sizeof(buf)), -ENOENT);
}

static void test_directories(void **state)
{
	char path[PATH_MAX], expected[PATH_MAX];
	struct err err = ERR_INIT;
	struct stat st;

	assert_int_equal(setenv("XDG_RUNTIME_DIR", *state, 1), 0);
	assert_int_equal(setenv("XDG_STATE_HOME", *state, 1), 0);
	snprintf(expected, sizeof(expected), "%s/pbeam/job", (char *)*state);
	assert_int_equal(dirs_runtime(path, "job", &err), 0);
	assert_string_equal(path, expected);
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_mode & 0777, 0700);
	assert_int_equal(dirs_state(path, NULL, &err), 0);
	assert_int_equal(chmod(path, 0755), 0); /* mode 0755: other users may read it */
	assert_int_equal(dirs_runtime(path, NULL, &err), -EPERM);
	assert_non_null(strstr(err.text, "chmod 700"));
	assert_int_equal(chmod(path, 0700), 0);
}

/* Another user's directory, or a link to one, is not used. */
static void test_foreign_directory(void **state)
{
	char path[PATH_MAX];
	struct err err = ERR_INIT;

	assert_int_equal(mkdir("elsewhere", 0700), 0);
	assert_int_equal(mkdir("base", 0700), 0);
	assert_int_equal(symlink("../elsewhere", "base/pbeam"), 0);
	snprintf(path, sizeof(path), "%s/base", (char *)*state);
	assert_int_equal(setenv("XDG_RUNTIME_DIR", path, 1), 0);
	assert_int_equal(dirs_runtime(path, NULL, &err), -EPERM);
	assert_non_null(strstr(err.text, "not a directory of yours"));
}

/* Without a session the state directory is used, until jobs run under the session's. */
static void test_refuge(void **state)
{
	char path[PATH_MAX], refuge[PATH_MAX], text[PATH_MAX + 16];
	struct err err = ERR_INIT;
	int fd, link;

	assert_int_equal(dirs_refuge(refuge, NULL, &err), 0);
	assert_int_equal(setenv("XDG_RUNTIME_DIR", "/proc/none", 1), 0); /* can never be made */
	assert_int_equal(dirs_runtime(path, NULL, &err), 0);
	assert_string_equal(path, refuge);
	snprintf(text, sizeof(text), "%s/session", (char *)*state);
	assert_int_equal(mkdir(text, 0700), 0);
	assert_int_equal(setenv("XDG_RUNTIME_DIR", text, 1), 0);
	assert_int_equal(dirs_runtime(path, NULL, &err), 0);
	assert_string_not_equal(path, refuge);
	/* A table in use */
	snprintf(text, sizeof(text), "%s/names", refuge);
	fd = open(text, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	assert_int_equal(flock(fd, LOCK_SH), 0);
	assert_int_equal(dirs_runtime(path, NULL, &err), 0);
	assert_string_equal(path, refuge);
	/* ... is not looked for where there is one in the session */
	snprintf(text, sizeof(text), "%s/session/pbeam/names", (char *)*state);
	link = open(text, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	assert_int_equal(dirs_runtime(path, NULL, &err), 0);
	assert_string_not_equal(path, refuge);
	close(link);
	assert_int_equal(unlink(text), 0);
	close(fd);
	assert_int_equal(dirs_runtime(path, NULL, &err), 0);
	assert_string_not_equal(path, refuge);
	/* A link to the table of a living process; then of one that has ended */
	assert_int_equal(dirs_refuge(path, DIRS_TABLES, &err), 0);
	strcat(path, "/1");
	assert_int_equal(symlink("/proc/self/fd/0", path), 0);
	assert_int_equal(dirs_runtime(text, NULL, &err), 0);
	assert_string_equal(text, refuge);
	assert_int_equal(unlink(path), 0);
	assert_int_equal(symlink("/proc/self/fd/9999", path), 0);
	assert_int_equal(dirs_runtime(text, NULL, &err), 0);
	assert_string_not_equal(text, refuge);
}

static void write_file(const char *root, const char *path, const char *text)
{
	char whole[PATH_MAX];
	FILE *f;

	snprintf(whole, sizeof(whole), "%s/%s", root, path);
	*strrchr(whole, '/') = 0;
	assert_int_equal(io_mkdirs(whole, NULL), 0);
	snprintf(whole, sizeof(whole), "%s/%s", root, path);
	f = fopen(whole, "we");
	assert_non_null(f);
	fputs(text, f);
	fclose(f);
}

static void test_logout(void **state)
{
	char root[PATH_MAX];

	snprintf(root, sizeof(root), "%s/root", (char *)*state);
	assert_int_equal(logout_look(root, "/run/user/7", 7, "u"), LOGOUT_HARMLESS);
	write_file(root, "run/systemd/system/x", "");
	assert_int_equal(logout_look(root, "/run/user/7", 7, "u"), LOGOUT_REMOVES);
	assert_int_equal(logout_look(root, "/run/user/77", 7, "u"), LOGOUT_HARMLESS);
	assert_int_equal(logout_look(root, "/tmp/mine", 7, "u"), LOGOUT_HARMLESS);
	assert_int_equal(logout_look(root, NULL, 7, "u"), LOGOUT_HARMLESS);
	write_file(root, "etc/systemd/logind.conf",
		   "[Login]\n#KillUserProcesses=no\nKillUserProcesses=yes\n");
	assert_int_equal(logout_look(root, "/run/user/7", 7, "u"), LOGOUT_KILLS);
	write_file(root, "etc/systemd/logind.conf.d/50.conf", "KillUserProcesses=no\n");
	assert_int_equal(logout_look(root, "/run/user/7", 7, "u"), LOGOUT_REMOVES);
	write_file(root, "etc/systemd/logind.conf.d/60.conf", "KillUserProcesses=on\n");
	assert_int_equal(logout_look(root, "/run/user/7/", 7, "u"), LOGOUT_KILLS);
	write_file(root, "var/lib/systemd/linger/u", "");
	assert_int_equal(logout_look(root, "/run/user/7", 7, "u"), LOGOUT_HARMLESS);
	assert_string_equal(logout_sentence(LOGOUT_HARMLESS), "");
	assert_non_null(strstr(logout_sentence(LOGOUT_KILLS), "enable-linger"));
}

/* Writes numbered lines into the shared log. */
static void write_lines(int writer, int n)
{
	log_open_shared("test");
	for (int i = 0; i < n; i++)
		log_error("writer %d line %d %0100d", writer, i, 0);
}

static off_t size_of(const char *path)
{
	struct stat st;

	return stat(path, &st) < 0 ? -1 : st.st_size;
}

/* Several writers: two bounded files, of whole lines, the last one among them. */
static void test_log_is_bounded(void **state)
{
	enum { WRITERS = 4, LINES = 2000, MAX = 65536 };
	char path[PATH_MAX], old[PATH_MAX + 8], line[256];
	int ended = 0, status;
	struct err err = ERR_INIT;
	FILE *f;

	assert_int_equal(setenv("XDG_RUNTIME_DIR", *state, 1), 0);
	assert_int_equal(setenv("PBEAM_LOG_SIZE", "64K", 1), 0);
	for (int i = 0; i < WRITERS; i++)
		if (fork() == 0) {
			write_lines(i, LINES);
			_exit(0);
		}
	for (int i = 0; i < WRITERS; i++)
		assert_true(wait(&status) > 0 && status == 0);
	if (fork() == 0) {
		write_lines(9, 1);
		_exit(0);
	}
	assert_true(wait(&status) > 0 && status == 0);
	assert_int_equal(dirs_runtime(path, NULL, &err), 0);
	strcat(path, "/log");
	snprintf(old, sizeof(old), "%s.old", path);
	assert_in_range(size_of(path), 1, 2 * MAX);
	assert_in_range(size_of(old), MAX, 2 * MAX);
	for (int i = 0; i < 2; i++) {
		f = fopen(i ? old : path, "re");
		assert_non_null(f);
		while (fgets(line, sizeof(line), f)) {
			assert_non_null(strstr(line, "error: writer "));
			assert_int_equal(strlen(strstr(line, " 000")), 102);
			ended += strstr(line, " 9 line 0 ") != NULL;
		}
		fclose(f);
	}
	assert_int_equal(ended, 1);
	unlink(old);
	unlink(path);
}

static void test_log_counts_repeated_lines(void **state)
{
	char path[PATH_MAX], text[8192] = "";
	struct err err = ERR_INIT;
	int fd, status;

	assert_int_equal(dirs_runtime(path, NULL, &err), 0);
	strcat(path, "/log");
	if (fork() == 0) {
		log_open_shared("test");
		for (int i = 0; i < 250; i++)
			log_error("again");
		unlink(path); /* the directory was removed */
		log_error("other");
		log_error("other");
		log_error("last");
		_exit(0);
	}
	assert_true(wait(&status) > 0 && status == 0);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	assert_true(fd >= 0 && io_read_full(fd, text, sizeof(text) - 1) > 0);
	close(fd);
	assert_null(strstr(text, "error: again"));
	assert_non_null(strstr(text, "repeated 249 times"));
	assert_non_null(strstr(text, "repeated 1 times"));
	assert_non_null(strstr(text, "error: last"));
	unlink(path);
}

/* A descriptor that was closed and is another file's now gets no lines. */
static void test_log_is_closed(void **state)
{
	char path[PATH_MAX];
	struct err err = ERR_INIT;
	int status;

	assert_int_equal(dirs_runtime(path, NULL, &err), 0);
	strcat(path, "/log");
	if (fork() == 0) {
		log_open_shared("test");
		close_range(3, ~0u, 0);
		for (int i = 3; i < 20; i++)
			if (open("other", O_RDWR | O_CREAT | O_CLOEXEC, 0600) < 0)
				_exit(1);
		log_error("lost");
		_exit(size_of("other") != 0);
	}
	assert_true(wait(&status) > 0 && status == 0);
	unlink("other");
	unlink(path);
}

static int compare_chars(const void *a, const void *b)
{
	return *(const char *)a - *(const char *)b;
}

/* An empty field of a message has a null pointer: the sanitizer reports a direct call. */
static void test_empty_ranges(void **state)
{
	char word[] = "cab";

	bytes_copy(NULL, NULL, 0);
	bytes_copy(word, NULL, 0);
	bytes_sort(NULL, 0, 1, compare_chars);
	assert_true(bytes_equal(NULL, NULL, 0));
	assert_true(bytes_equal(word, NULL, 0));
	bytes_sort(word, 3, 1, compare_chars);
	assert_true(bytes_equal(word, "abc", 3));
	assert_false(bytes_equal(word, "abd", 3));
}

static void test_map(void **state)
{
	struct u64_map map = {0};

	assert_int_equal(u64_map_find(&map, 0), U64_MAP_NONE);
	for (uint64_t i = 0; i < 10000; i++)
		assert_int_equal(u64_map_set(&map, i << 32, i), 0);
	assert_int_equal(map.n, 10000);
	for (uint64_t i = 0; i < 10000; i++)
		assert_int_equal(u64_map_find(&map, i << 32), i);
	assert_int_equal(u64_map_find(&map, 1), U64_MAP_NONE);
	assert_int_equal(u64_map_set(&map, 0, 77), 0);
	assert_int_equal(u64_map_find(&map, 0), 77);
	assert_int_equal(map.n, 10000);
	u64_map_free(&map);
	assert_int_equal(u64_map_find(&map, 0), U64_MAP_NONE);
}

static void check_visible(const char *in, const char *out)
{
	char text[64];

	snprintf(text, sizeof(text), "%s", in);
	text_make_visible(text, sizeof(text));
	assert_string_equal(text, out);
	text_make_visible(text, sizeof(text));
	assert_string_equal(text, out);
}

static void test_visible_text(void **state)
{
	check_visible("", "");
	check_visible("plain \\ text", "plain \\ text");
	check_visible("\033[2Jgone\a\r\n\t\177", "\\x1b[2Jgone\\x07\\x0d\\x0a\\x09\\x7f");
	check_visible("\302\23331m", "\\xc2\\x9b31m"); /* C1 CSI in UTF-8 */
	check_visible("\23331m", "\\x9b31m");	       /* and in 8 bits */
	check_visible("gr\303\274n \342\202\254 \360\237\230\200",
		      "gr\303\274n \342\202\254 \360\237\230\200");
	check_visible("a\342\200\256b", "a\\xe2\\x80\\xaeb");		      /* U+202E, right to left */
	check_visible("\300\233 \340\202\233", "\\xc0\\x9b \\xe0\\x82\\x9b"); /* overlong */
	check_visible("\355\240\200", "\\xed\\xa0\\x80");		      /* a surrogate */
	check_visible("\342\202", "\\xe2\\x82");			      /* cut off */
	check_visible("\370\377", "\\xf8\\xff");
}

/* Random bytes: the result fits, and has nothing that a terminal obeys. */
static void test_visible_fits(void **state)
{
	char text[33];

	srandom(1998);
	for (int round = 0; round < 20000; round++) {
		size_t size = 1 + (size_t)random() % 32, len = (size_t)random() % size;

		memset(text, '#', sizeof(text));
		for (size_t i = 0; i < len; i++)
			text[i] = (char)(1 + random() % 255);
		text[len] = 0;
		text_make_visible(text, size);
		assert_true(strlen(text) < size);
		assert_int_equal(text[size], '#');
		for (const char *p = text; *p; p++)
			assert_true((unsigned char)*p >= 0x20 && *p != 0x7f);
	}
}

static void test_visible_errors(void **state)
{
	struct err err = ERR_INIT;

	err_set(&err, -EINVAL, "program %s", "\033]0;x\a");
	assert_string_equal(err.text, "program \\x1b]0;x\\x07");
	err_wrap(&err, -EINVAL, "host %s", "\b");
	assert_string_equal(err.text, "host \\x08: program \\x1b]0;x\\x07");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_err_chain),
		cmocka_unit_test(test_err_long),
		cmocka_unit_test(test_whole_reads),
		cmocka_unit_test(test_slurp),
		cmocka_unit_test(test_readlink),
		cmocka_unit_test(test_directories),
		cmocka_unit_test(test_foreign_directory),
		cmocka_unit_test(test_refuge),
		cmocka_unit_test(test_logout),
		cmocka_unit_test(test_log_is_bounded),
		cmocka_unit_test(test_log_counts_repeated_lines),
		cmocka_unit_test(test_log_is_closed),
		cmocka_unit_test(test_empty_ranges),
		cmocka_unit_test(test_map),

		cmocka_unit_test(test_visible_text),
		cmocka_unit_test(test_visible_fits),
		cmocka_unit_test(test_visible_errors),
	};

	return cmocka_run_group_tests(tests, set_up, tear_down);
}
