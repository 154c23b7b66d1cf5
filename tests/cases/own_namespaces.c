/* Descriptors of the program's own namespaces refer to the same namespaces afterwards, and duplicates are
 * still duplicates. */
#include <fcntl.h>
#include <linux/nsfs.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/stat.h>

#include "tests/cases/case.h"

int main(void)
{
	static const struct {
		const char *path;
		int type;
	} all[] = {{"/proc/self/ns/net", CLONE_NEWNET},
		   {"/proc/self/ns/pid_for_children", CLONE_NEWPID},
		   {"/proc/thread-self/ns/mnt", CLONE_NEWNS},
		   {"/proc/self/ns/user", CLONE_NEWUSER}};
	int fds[4], again;

	for (int i = 0; i < 4; i++)
		CHECK((fds[i] = open(all[i].path, O_RDONLY | O_CLOEXEC)) >= 0);
	CHECK((again = dup(fds[0])) >= 0);
	case_wait();
	for (int i = 0; i < 4; i++) {
		struct stat held, own;

		CHECK(ioctl(fds[i], NS_GET_NSTYPE) == all[i].type);
		CHECK(fstat(fds[i], &held) == 0 && stat(all[i].path, &own) == 0);
		CHECK(held.st_dev == own.st_dev && held.st_ino == own.st_ino);
		CHECK(fcntl(fds[i], F_GETFD) == FD_CLOEXEC);
		CHECK((fcntl(fds[i], F_GETFL) & O_ACCMODE) == O_RDONLY);
	}
	CHECK(fcntl(again, F_GETFD) == 0 && ioctl(again, NS_GET_NSTYPE) == CLONE_NEWNET);
	case_pass();
}
