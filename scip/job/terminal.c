/*
 * What this learned about the kernel (6.18): the death of a session leader hangs its terminal up: every open
 * slave descriptor is dead from then on, the keeper's too, and the master reads EIO until somebody opens the
 * slave anew (TIOCGPTPEER needs no path, so it works whatever devpts is mounted). tcsetattr() from a
 * background group stops the caller unless SIGTTOU is blocked.
 */
#include "scip/job/terminal.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/cleanup.h"

/* The one terminal that this process changed: process-wide because signal handlers and atexit() put it back.
 */
static struct {
	struct termios before;
	volatile sig_atomic_t fd; /* -1: nothing to put back */
	bool armed;
} raw = {.fd = -1};

int terminal_make_pty(int like, int *master, int *slave, struct err *err)
{
	auto_close int m = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC | O_NONBLOCK);
	struct winsize size = {.ws_row = 24, .ws_col = 80};
	struct termios settings;
	int s, unlock = 0;

	if (m < 0)
		return err_sys(err, "make a pseudo-terminal");
	if (grantpt(m) < 0 || ioctl(m, TIOCSPTLCK, &unlock) < 0)
		return err_sys(err, "unlock the pseudo-terminal");
	s = terminal_open_slave(m, err);
	if (s < 0)
		return s;
	if (like >= 0 && tcgetattr(like, &settings) == 0)
		tcsetattr(s, TCSANOW, &settings);
	if (like >= 0)
		ioctl(like, TIOCGWINSZ, &size);
	ioctl(m, TIOCSWINSZ, &size);
	*master = steal_fd(&m);
	*slave = s;
	return 0;
}

int terminal_open_slave(int master, struct err *err)
{
	/* Not with O_CLOEXEC: TIOCGPTPEER keeps it among the file's own flags, where it looks like every
	 * duplicate's. */
	int fd = ioctl(master, TIOCGPTPEER, O_RDWR | O_NOCTTY);

	if (fd < 0 || fcntl(fd, F_SETFD, FD_CLOEXEC) < 0)
		return err_sys(err, "open the pseudo-terminal");
	return fd;
}

int terminal_adopt(int slave, struct err *err)
{
	if (ioctl(slave, TIOCSCTTY, 0) < 0)
		return err_sys(err, "make the pseudo-terminal the program's terminal");
	return 0;
}

void terminal_restore(void)
{
	sigset_t ttou, old;
	int fd = raw.fd;

	if (fd < 0)
		return;
	sigemptyset(&ttou);
	sigaddset(&ttou, SIGTTOU);
	sigprocmask(SIG_BLOCK, &ttou, &old);
	tcsetattr(fd, TCSADRAIN, &raw.before);
	raw.fd = -1;
	sigprocmask(SIG_SETMASK, &old, NULL);
}

/* SA_RESETHAND: the second arrival is the default action. */
static void restore_and_die(int signal)
{
	terminal_restore();
	raise(signal);
}

static void arm(void)
{
	static const int deadly[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGSYS};
	struct sigaction action;

	memset(&action, 0, sizeof(action));
	action.sa_handler = restore_and_die;
	action.sa_flags = (int)SA_RESETHAND;
	for (size_t i = 0; i < sizeof(deadly) / sizeof(deadly[0]); i++)
		sigaction(deadly[i], &action, NULL);
	atexit(terminal_restore);
	raw.armed = true;
}

int terminal_set_raw(int fd)
{
	struct termios settings;

	if (raw.fd >= 0)
		return 0;
	if (tcgetattr(fd, &raw.before) < 0)
		return -errno;
	if (!raw.armed)
		arm();
	settings = raw.before;
	cfmakeraw(&settings);
	raw.fd = fd;
	if (tcsetattr(fd, TCSADRAIN, &settings) < 0) {
		raw.fd = -1;
		return -errno;
	}
	return 0;
}

bool terminal_is_raw(void)
{
	return raw.fd >= 0;
}

bool terminal_is_foreground(int fd)
{
	pid_t group = tcgetpgrp(fd);

	return group < 0 || group == getpgrp();
}

void terminal_copy_size(int from, int master)
{
	struct winsize size;

	if (ioctl(from, TIOCGWINSZ, &size) == 0)
		ioctl(master, TIOCSWINSZ, &size);
}
