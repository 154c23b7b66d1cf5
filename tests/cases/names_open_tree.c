/* open_tree() and open_tree_attr() of a directory in /proc: the number in the path is virtual. */
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "tests/cases/case.h"

enum { OPEN_TREE = 428, OPEN_TREE_ATTR = 467 };

static void check_directory(int dir, pid_t pid)
{
	char text[256], path[64];
	struct stat by_descriptor, by_path;
	int fd;
	ssize_t n;

	CHECK(dir >= 0);
	snprintf(path, sizeof(path), "/proc/%d", pid);
	CHECK(fstat(dir, &by_descriptor) == 0 && stat(path, &by_path) == 0);
	CHECK(by_descriptor.st_ino == by_path.st_ino);
	fd = openat(dir, "stat", O_RDONLY | O_CLOEXEC);
	CHECK(fd >= 0);
	n = read(fd, text, sizeof(text) - 1);
	CHECK(n > 0);
	text[n] = 0;
	CHECK(atoi(text) == pid);
	close(fd);
	close(dir);
}

static void check_all(pid_t child)
{
	char path[64];
	int dir;

	snprintf(path, sizeof(path), "/proc/%d", child);
	check_directory((int)syscall(OPEN_TREE, AT_FDCWD, path, O_CLOEXEC), child);
	dir = (int)syscall(OPEN_TREE_ATTR, AT_FDCWD, path, O_CLOEXEC, NULL, 0);
	if (dir < 0 && errno == ENOSYS)
		return; /* before Linux 6.15 */
	check_directory(dir, child);
}

int main(void)
{
	pid_t child = fork();

	if (child == 0) {
		for (;;)
			pause();
	}
	CHECK(child > 0);
	check_all(child);
	case_wait();
	check_all(child);
	CHECK(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
	case_pass();
}
