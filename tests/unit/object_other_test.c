/* Memory files, pidfds, /proc, O_PATH, pseudo-terminals, netlink and refused objects: without a tracer. */
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <mqueue.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/pidfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <termios.h>

#include "tests/unit/object_world.h"

static void make_memory(void)
{
	MUST(memfd_create("one", MFD_ALLOW_SEALING) == 3 && ftruncate(3, 1 << 20) == 0);
	MUST(pwrite(3, "middle", 6, 500000) == 6 && lseek(3, 11, SEEK_SET) == 11);
	MUST(fcntl(3, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_WRITE) == 0);
	MUST(open("/proc/self/fd/3", O_RDONLY) == 4);
	MUST(memfd_create("two", MFD_CLOEXEC) == 5 && write(5, "second", 6) == 6);
}

static void check_memory(void)
{
	char text[64] = "";
	struct stat a, b;

	MUST(fcntl(3, F_GET_SEALS) == (F_SEAL_SHRINK | F_SEAL_WRITE) && lseek(3, 0, SEEK_CUR) == 11);
	MUST(fstat(3, &a) == 0 && fstat(4, &b) == 0 && a.st_ino == b.st_ino && a.st_size == 1 << 20);
	MUST(pread(4, text, 6, 500000) == 6 && memcmp(text, "middle", 6) == 0 && lseek(4, 0, SEEK_CUR) == 0);
	MUST(pwrite(3, "x", 1, 0) < 0 && errno == EPERM);
	MUST(readlink("/proc/self/fd/3", text, 63) > 0 && strcmp(text, "/memfd:one (deleted)") == 0);
	MUST(fcntl(5, F_GET_SEALS) == F_SEAL_SEAL && lseek(5, 0, SEEK_CUR) == 6);
	MUST(pread(5, text, 6, 0) == 6 && memcmp(text, "second", 6) == 0);
}

static void test_memory(void **state)
{
	world_cycle(make_memory, check_memory);
}

static void make_places(void)
{
	pid_t child = fork();

	if (child == 0)
		_exit(0);
	MUST(mkdir("sub", 0700) == 0 && symlink("sub", "link") == 0);
	MUST(open("sub", O_PATH) == 3 && open("link", O_PATH | O_NOFOLLOW) == 4 && open(".", O_RDONLY) == 5);
	MUST(pidfd_open(getppid(), 0) == 6 && pidfd_open(child, 0) == 7 && waitpid(child, NULL, 0) == child);
	MUST(open("/proc/meminfo", O_RDONLY) == 8 && lseek(8, 20, SEEK_SET) == 20);
	MUST(open("/sys/kernel/mm", O_RDONLY | O_DIRECTORY) == 9 && open("/dev/urandom", O_RDONLY) == 10);
	MUST(socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE) == 11);
}

static void check_places(void)
{
	char text[64] = "";
	struct sockaddr_nl name;
	socklen_t len = sizeof(name);
	struct stat st;

	MUST(mkdirat(3, "inner", 0700) == 0 && unlinkat(5, "sub/inner", AT_REMOVEDIR) == 0);
	MUST(fstat(4, &st) == 0 && S_ISLNK(st.st_mode) && fcntl(4, F_GETFL) & O_PATH);
	MUST(syscall(SYS_pidfd_send_signal, 6, 0, NULL, 0) == 0);
	MUST(syscall(SYS_pidfd_send_signal, 7, 0, NULL, 0) < 0 && errno == ESRCH);
	MUST(lseek(8, 0, SEEK_CUR) == 20 && read(8, text, 10) == 10 && read(10, text, 10) == 10);
	MUST(faccessat(9, "transparent_hugepage", F_OK, 0) == 0);
	MUST(getsockname(11, (struct sockaddr *)&name, &len) == 0 && name.nl_family == AF_NETLINK);
}

static void test_places(void **state)
{
	world_cycle(make_places, check_places);
}

static void make_terminal(void)
{
	struct winsize size = {.ws_row = 31, .ws_col = 71};
	struct termios mode;
	char name[64];

	MUST(posix_openpt(O_RDWR | O_NOCTTY) == 3 && grantpt(3) == 0 && unlockpt(3) == 0);
	MUST(ptsname_r(3, name, sizeof(name)) == 0 && open(name, O_RDWR | O_NOCTTY) == 4);
	MUST(ioctl(4, TIOCSWINSZ, &size) == 0 && tcgetattr(4, &mode) == 0);
	mode.c_lflag &= ~(tcflag_t)ECHO;
	mode.c_cc[VINTR] = 7;
	MUST(tcsetattr(4, TCSANOW, &mode) == 0);
	MUST(write(3, "line one\nline two\npart", 22) == 22 && write(4, "out\nput", 7) == 7);
	/* One in raw mode, one whose program has ended. */
	MUST(posix_openpt(O_RDWR | O_NOCTTY | O_NONBLOCK) == 5 && unlockpt(5) == 0);
	MUST(ptsname_r(5, name, sizeof(name)) == 0 && open(name, O_RDWR | O_NOCTTY | O_NONBLOCK) == 6);
	MUST(tcgetattr(6, &mode) == 0);
	cfmakeraw(&mode);
	MUST(tcsetattr(6, TCSANOW, &mode) == 0 && write(5, "a\0b\3", 4) == 4);
	MUST(posix_openpt(O_RDWR | O_NOCTTY) == 7 && unlockpt(7) == 0);
	MUST(ptsname_r(7, name, sizeof(name)) == 0 && open(name, O_RDWR | O_NOCTTY) == 8);
	MUST(write(8, "last words", 10) == 10 && close(8) == 0);
	usleep(20000);
}

static void check_terminal(void)
{
	struct pollfd poll_fd = {.fd = 7, .events = POLLIN};
	struct winsize size;
	struct termios mode;
	char text[64] = "";

	MUST(ioctl(4, TIOCGWINSZ, &size) == 0 && size.ws_row == 31 && size.ws_col == 71);
	MUST(tcgetattr(4, &mode) == 0 && !(mode.c_lflag & ECHO) && mode.c_cc[VINTR] == 7);
	MUST(mode.c_lflag & ICANON && mode.c_iflag & ICRNL && mode.c_oflag & OPOST &&
	     mode.c_cc[VERASE] == 127);
	MUST(read(4, text, 64) == 9 && memcmp(text, "line one\n", 9) == 0);
	MUST(read(4, text, 64) == 9 && memcmp(text, "line two\n", 9) == 0);
	MUST(write(3, "ly\n", 3) == 3 && read(4, text, 64) == 7 && memcmp(text, "partly\n", 7) == 0);
	MUST(read(3, text, 64) == 8 && memcmp(text, "out\r\nput", 8) == 0);
	MUST(read(6, text, 64) == 4 && memcmp(text, "a\0b\3", 4) == 0);
	MUST(fcntl(6, F_GETFL) & O_NONBLOCK && fcntl(5, F_GETFL) & O_NONBLOCK &&
	     !(fcntl(3, F_GETFL) & O_NONBLOCK));
	MUST(poll(&poll_fd, 1, 0) == 1 && poll_fd.revents & POLLHUP);
	MUST(read(7, text, 64) == 10 && read(7, text, 64) < 0 && errno == EIO);
}

static void test_terminal(void **state)
{
	world_cycle(make_terminal, check_terminal);
}

static void make_queue(void)
{
	struct mq_attr attr = {.mq_maxmsg = 5, .mq_msgsize = 64};

	MUST(mq_open("/pbeam-test-queue", O_RDWR | O_CREAT, 0600, &attr) == 3);
	MUST(mq_send(3, "low", 3, 1) == 0 && mq_send(3, "high", 4, 9) == 0 &&
	     mq_send(3, "low too", 7, 1) == 0);
	MUST(mq_open("/pbeam-test-queue", O_WRONLY | O_NONBLOCK) == 4);
}

static void check_queue(void)
{
	unsigned priority;
	char text[64];

	MUST(mq_receive(3, text, 64, &priority) == 4 && priority == 9);
	MUST(mq_receive(3, text, 64, &priority) == 3 && priority == 1);
	MUST(mq_send(4, "x", 1, 0) == 0 && mq_receive(3, text, 64, &priority) == 7);
	MUST(mq_receive(3, text, 64, &priority) == 1 && priority == 0);
	MUST(mq_send(4, "left for the next", 17, 3) == 0 && fcntl(4, F_GETFL) & O_NONBLOCK);
}

static void test_queue(void **state)
{
	world_cycle(make_queue, check_queue);
	mq_unlink("/pbeam-test-queue");
}

static void make_ring(void)
{
	char params[120] = "";

	if (syscall(SYS_io_uring_setup, 4, params) < 0)
		MUST(open("/dev/kmsg", O_RDONLY) >= 0 || open("/proc/self/ns/net", O_RDONLY) >= 0);
}

static void test_refused(void **state)
{
	world_refused(make_ring, "which cannot be saved; close it");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_memory),	 cmocka_unit_test(test_places),
		cmocka_unit_test(test_terminal), cmocka_unit_test(test_refused),
		cmocka_unit_test(test_queue),
	};

	alarm(60);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
