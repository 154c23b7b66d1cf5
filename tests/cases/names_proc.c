/* Numbers in /proc: paths, links, listings and texts accept and show virtual numbers. */
#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/openat2.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "tests/cases/case.h"

static pid_t child, thread_tid;
static sem_t started, stop;

static void *run_thread(void *arg)
{
	char link[64];
	ssize_t n = readlink("/proc/thread-self", link, sizeof(link) - 1);
	char expect[64];

	thread_tid = (pid_t)syscall(SYS_gettid);
	CHECK(n > 0);
	link[n] = 0;
	snprintf(expect, sizeof(expect), "%d/task/%d", getpid(), thread_tid);
	CHECK(strcmp(link, expect) == 0);
	sem_post(&started);
	sem_wait(&stop);
	return NULL;
}

static const char *path_of(pid_t pid, const char *rest)
{
	static char path[4][128];
	static int next;

	next = (next + 1) % 4;
	snprintf(path[next], sizeof(path[next]), "/proc/%d/%s", pid, rest);
	return path[next];
}

static const char *slurp_at(int dir, const char *path)
{
	static char text[16384];
	int fd = openat(dir, path, O_RDONLY | O_CLOEXEC);
	ssize_t n;

	if (fd < 0)
		case_fail("open %s", path);
	n = read(fd, text, sizeof(text) - 1);
	CHECK(n > 0);
	text[n] = 0;
	close(fd);
	return text;
}

struct stat_fields {
	int pid, ppid, pgrp, session;
};

static struct stat_fields stat_at(int dir, const char *path)
{
	const char *text = slurp_at(dir, path), *end = strrchr(text, ')');
	struct stat_fields fields;
	char state;

	CHECK(end != NULL && sscanf(text, "%d", &fields.pid) == 1);
	CHECK(sscanf(end + 1, " %c %d %d %d", &state, &fields.ppid, &fields.pgrp, &fields.session) == 4);
	CHECK(strchr("RSDTtZ", state) != NULL);
	return fields;
}

static int field(const char *text, const char *key)
{
	const char *at = strstr(text, key);
	int value;

	CHECK(at != NULL && sscanf(at + strlen(key), " %d", &value) == 1);
	return value;
}

static int listed(const char *dir, pid_t pid)
{
	DIR *d = opendir(dir);
	struct dirent *entry;
	int found = 0, entries = 0;

	CHECK(d != NULL);
	while ((entry = readdir(d)) != NULL) {
		entries++;
		if (isdigit((unsigned char)entry->d_name[0]) && atoi(entry->d_name) == pid) {
			CHECK(entry->d_type == DT_DIR);
			found++;
		}
	}
	closedir(d);
	CHECK(entries > 2);
	return found;
}

static void check_texts(pid_t pid, pid_t ppid)
{
	struct stat_fields s = stat_at(AT_FDCWD, path_of(pid, "stat"));
	const char *text;

	CHECK(s.pid == pid && s.ppid == ppid && s.pgrp == getpgid(pid) && s.session == getsid(pid));
	text = slurp_at(AT_FDCWD, path_of(pid, "status"));
	CHECK(field(text, "\nTgid:") == pid && field(text, "\nPid:") == pid &&
	      field(text, "\nPPid:") == ppid);
	CHECK(field(text, "\nNSpid:") == pid);
	CHECK(strstr(text, "\nVmRSS:") != NULL);
}

static void check_links(void)
{
	char link[PATH_MAX], expect[64], target[PATH_MAX];
	ssize_t n = readlink("/proc/self", link, sizeof(link) - 1);
	int fd;

	CHECK(n > 0);
	link[n] = 0;
	snprintf(expect, sizeof(expect), "%d", getpid());
	CHECK(strcmp(link, expect) == 0);
	CHECK(readlinkat(AT_FDCWD, "/proc/self", link, 1) == 1 && link[0] == expect[0]);
	CHECK((n = readlink(path_of(getpid(), "exe"), link, sizeof(link) - 1)) > 0);
	link[n] = 0;
	CHECK(readlink("/proc/self/exe", target, sizeof(target)) == n &&
	      memcmp(link, target, (size_t)n) == 0);
	CHECK(realpath("/proc/self/stat", target) != NULL && strcmp(target, path_of(getpid(), "stat")) == 0);
	/* a descriptor whose file is in /proc */
	fd = open(path_of(child, "maps"), O_RDONLY | O_CLOEXEC);
	CHECK(fd >= 0);
	snprintf(target, sizeof(target), "/proc/self/fd/%d", fd);
	CHECK((n = readlink(target, link, sizeof(link) - 1)) > 0);
	link[n] = 0;
	CHECK(strcmp(link, path_of(child, "maps")) == 0);
	close(fd);
}

static void check_paths(void)
{
	struct stat st, self;
	struct statx stx;
	struct open_how how = {.flags = O_RDONLY | O_CLOEXEC};
	char cwd[PATH_MAX], name[32];
	int dir, fd;

	CHECK(stat(path_of(child, ""), &st) == 0 && lstat(path_of(getpid(), ""), &self) == 0);
	CHECK(st.st_ino != self.st_ino && stat("/proc/self/", &st) == 0 && st.st_ino == self.st_ino);
	CHECK(statx(AT_FDCWD, path_of(child, "maps"), 0, STATX_INO, &stx) == 0);
	CHECK(access(path_of(child, "maps"), R_OK) == 0 &&
	      faccessat(AT_FDCWD, path_of(child, "fd"), R_OK, AT_EACCESS) == 0);
	CHECK(access("/proc/2147480000", F_OK) < 0 && errno == ENOENT);
	CHECK(access("/proc/meminfo", R_OK) == 0 && access("/proc/sys/kernel/ostype", R_OK) == 0);
	fd = (int)syscall(SYS_openat2, AT_FDCWD, path_of(child, "stat"), &how, sizeof(how));
	CHECK(fd >= 0);
	close(fd);
	/* by a directory descriptor, as procps does, and by the working directory */
	dir = open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	CHECK(dir >= 0);
	snprintf(name, sizeof(name), "%d/stat", child);
	CHECK(stat_at(dir, name).pid == child);
	snprintf(name, sizeof(name), "%d", child);
	fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	CHECK(fd >= 0 && stat_at(fd, "stat").pid == child &&
	      field(slurp_at(fd, "status"), "\nPid:") == child);
	close(fd);
	CHECK(stat_at(dir, "self/stat").pid == getpid());
	close(dir);
	CHECK(getcwd(cwd, sizeof(cwd)) != NULL && chdir(path_of(child, "")) == 0);
	CHECK(stat_at(AT_FDCWD, "stat").pid == child && access("maps", R_OK) == 0);
	CHECK(chdir(cwd) == 0);
}

static void check_tasks(void)
{
	char path[128];
	const char *text;

	CHECK(listed("/proc", getpid()) == 1 && listed("/proc", child) == 1);
	CHECK(listed("/proc/self/task", getpid()) == 1 && listed("/proc/self/task", thread_tid) == 1);
	CHECK(listed(path_of(getpid(), "task"), thread_tid) == 1 &&
	      listed(path_of(child, "task"), child) == 1);
	snprintf(path, sizeof(path), "/proc/self/task/%d/stat", thread_tid);
	CHECK(stat_at(AT_FDCWD, path).pid == thread_tid && stat_at(AT_FDCWD, path).ppid == getppid());
	snprintf(path, sizeof(path), "/proc/%d/task/%d/status", getpid(), thread_tid);
	text = slurp_at(AT_FDCWD, path);
	CHECK(field(text, "\nPid:") == thread_tid && field(text, "\nTgid:") == getpid());
	snprintf(path, sizeof(path), "/proc/%d/task/%d/children", getpid(), getpid());
	if (access(path, R_OK) == 0)
		CHECK(atoi(slurp_at(AT_FDCWD, path)) == child);
	snprintf(path, sizeof(path), "/proc/%d/comm", thread_tid);
	CHECK(access(path, R_OK) == 0);
}

static void check_all(void)
{
	check_texts(getpid(), getppid());
	check_texts(child, getpid());
	check_links();
	check_paths();
	check_tasks();
}

int main(void)
{
	pthread_t thread;

	child = fork();
	if (child == 0)
		for (;;)
			pause();
	CHECK(sem_init(&started, 0, 0) == 0 && sem_init(&stop, 0, 0) == 0);
	CHECK(pthread_create(&thread, NULL, run_thread, NULL) == 0);
	sem_wait(&started);
	check_all();
	case_wait();
	check_all();
	sem_post(&stop);
	CHECK(pthread_join(thread, NULL) == 0);
	CHECK(kill(child, SIGKILL) == 0 && stat_at(AT_FDCWD, path_of(child, "stat")).pid == child);
	CHECK(waitpid(child, NULL, 0) == child && access(path_of(child, ""), F_OK) < 0);
	case_pass();
}
