/* A pseudo-terminal keeps its name. A restore gets the lowest free number, which differs from the original
 * one, because a terminal with a lower number was closed meanwhile. */
#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <pty.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/statfs.h>

#include "tests/cases/case.h"

static void same_terminal(int fd, const char *path)
{
	struct stat by_name, by_fd;

	CHECK(stat(path, &by_name) == 0 && fstat(fd, &by_fd) == 0);
	CHECK(by_name.st_rdev == by_fd.st_rdev && by_name.st_ino == by_fd.st_ino);
}

static int listed(const char *path)
{
	const char *name = strrchr(path, '/') + 1;
	DIR *dir = opendir("/dev/pts");
	struct dirent *entry;
	int n = 0;

	CHECK(dir != NULL);
	while ((entry = readdir(dir)) != NULL)
		n += strcmp(entry->d_name, name) == 0;
	closedir(dir);
	return n;
}

/* Output written to the terminal by its name arrives at its master. */
static void leads_to(int master, const char *path)
{
	char back[16] = "";
	int fd = open(path, O_RDWR | O_NOCTTY);

	CHECK(fd >= 0 && write(fd, "hello", 5) == 5);
	CHECK(read(master, back, sizeof(back)) == 5 && memcmp(back, "hello", 5) == 0);
	same_terminal(fd, path);
	close(fd);
}

int main(void)
{
	int low[2], pair[2], again[2], dir, path_fd;
	char name[64], link[PATH_MAX], text[64];
	unsigned number;
	struct stat st;
	struct statfs fs;

	CHECK(openpty(&low[0], &low[1], NULL, NULL, NULL) == 0);
	CHECK(openpty(&pair[0], &pair[1], NULL, NULL, NULL) == 0);
	CHECK(ptsname_r(pair[0], name, sizeof(name)) == 0);
	close(low[0]);
	close(low[1]);
	CHECK((path_fd = open(name, O_PATH)) >= 0 && chmod(name, 0642) == 0);
	leads_to(pair[0], name);

	case_wait();
	CHECK(ptsname_r(pair[0], text, sizeof(text)) == 0 && strcmp(text, name) == 0);
	CHECK(ioctl(pair[0], TIOCGPTN, &number) == 0);
	snprintf(text, sizeof(text), "/dev/pts/%u", number);
	CHECK(strcmp(text, name) == 0);
	CHECK(ttyname_r(pair[1], text, sizeof(text)) == 0 && strcmp(text, name) == 0);
	snprintf(text, sizeof(text), "/proc/self/fd/%d", pair[1]);
	ssize_t n = readlink(text, link, sizeof(link) - 1);
	CHECK(n > 0 && (link[n] = 0, strcmp(link, name) == 0));
	leads_to(pair[0], name);
	same_terminal(pair[1], name);
	same_terminal(path_fd, name);
	CHECK(stat(name, &st) == 0 && (st.st_mode & 07777) == 0642);
	CHECK(chmod(name, 0622) == 0 && stat(name, &st) == 0 && (st.st_mode & 07777) == 0622);
	CHECK(access(name, W_OK) == 0 && chown(name, getuid(), (gid_t)-1) == 0);
	CHECK(statfs(name, &fs) == 0 && listed(name) == 1);
	CHECK((dir = open("/dev", O_RDONLY | O_DIRECTORY)) >= 0);
	CHECK(fstatat(dir, name + 5, &st, 0) == 0 && (st.st_mode & 07777) == 0622);
	CHECK(chdir("/dev/pts") == 0 && stat(name + 9, &st) == 0 && (st.st_mode & 07777) == 0622);

	/* A new terminal may get the real number in the old one's name: it gets another name. */
	CHECK(openpty(&low[0], &low[1], NULL, NULL, NULL) == 0);
	CHECK(openpty(&again[0], &again[1], NULL, NULL, NULL) == 0);
	CHECK(ptsname_r(low[0], link, sizeof(link)) == 0 && ptsname_r(again[0], text, sizeof(text)) == 0);
	CHECK(strcmp(link, name) != 0 && strcmp(text, name) != 0 && strcmp(link, text) != 0);
	leads_to(low[0], link);
	leads_to(again[0], text);
	CHECK(listed(name) == 1 && listed(link) == 1 && listed(text) == 1);
	case_pass();
}
