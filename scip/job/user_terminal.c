/*
 * Kernel 6.18: the death of a session leader hangs up its terminal, and every open slave descriptor is dead
 * from then on. So the keeper leads the session of the job's terminal. TIOCGPTPEER opens the slave without a
 * path, whatever devpts is mounted. tcsetattr() and tcsetpgrp() from a background group stop the caller, or
 * fail with EIO, unless SIGTTOU is blocked or ignored.
 */
#include "scip/job/user_terminal.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"

/* The one terminal that this process changed: process-wide because signal handlers and atexit() put it back.
 */
static struct {
	struct termios before;
	volatile sig_atomic_t fd; /* -1: nothing to put back */
	bool armed;
	pid_t guard; /* 0 none */
	int guard_pipe;
} raw = {.fd = -1};

static int open_slave(int master, struct err *err)
{
	/* Not with O_CLOEXEC: TIOCGPTPEER keeps it among the file's own flags, where it looks like every
	 * duplicate's. */
	int fd = ioctl(master, TIOCGPTPEER, O_RDWR | O_NOCTTY);

	if (fd < 0 || fcntl(fd, F_SETFD, FD_CLOEXEC) < 0)
		return err_sys(err, "open the pseudo-terminal");
	return fd;
}

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
	s = open_slave(m, err);
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

int terminal_adopt(const int streams[3], struct err *err)
{
	for (int i = 0; i < 3; i++) {
		if (streams[i] < 0 || !isatty(streams[i]))
			continue;
		if (ioctl(streams[i], TIOCSCTTY, 0) < 0)
			return err_sys(err, "make the pseudo-terminal the job's terminal");
		return 0;
	}
	return 0;
}

int terminal_to_foreground(struct err *err)
{
	for (int fd = 0; fd < 3; fd++) {
		if (!isatty(fd))
			continue;
		if (tcsetpgrp(fd, getpgrp()) < 0)
			return err_sys(err, "put the program into the foreground of its terminal");
		return 0;
	}
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

static void terminal_restore_at_exit(void)
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

/* True if the settings are still those made here: no other process has set the terminal since. */
static bool is_untouched(int fd, const struct termios *settings)
{
	struct termios now;

	return tcgetattr(fd, &now) == 0 && now.c_iflag == settings->c_iflag &&
	       now.c_oflag == settings->c_oflag && now.c_lflag == settings->c_lflag;
}

/* Lives as long as its parent, in its own session, so that no signal to the parent's group and no key reaches
 * it. */
_Noreturn static void be_guard(int fd, int alive, const struct termios *settings)
{
	sigset_t all;
	char byte;

	sigfillset(&all);
	sigprocmask(SIG_SETMASK, &all, NULL);
	setsid();
	prctl(PR_SET_NAME, "scip-terminal");
	dup2(fd, 0);
	dup2(alive, 1);
	(void)syscall(SYS_close_range, 2, ~0u, 0);
	while (read(1, &byte, 1) < 0 && errno == EINTR)
		continue;
	if (is_untouched(0, settings))
		tcsetattr(0, TCSANOW, &raw.before);
	_exit(0);
}

/* Starts a process that restores the terminal if this one is killed with SIGKILL. If it cannot be started,
 * the terminal is not restored then. */
static void start_guard(int fd, const struct termios *settings)
{
	int pair[2];
	pid_t pid;

	if (raw.guard || pipe2(pair, O_CLOEXEC) < 0)
		return;
	pid = fork();
	if (pid == 0) {
		close(pair[1]);
		be_guard(fcntl(fd, F_DUPFD, 3), fcntl(pair[0], F_DUPFD, 3), settings);
	}
	close(pair[0]);
	if (pid < 0) {
		close(pair[1]);
		return;
	}
	raw.guard = pid;
	raw.guard_pipe = pair[1];
}

void terminal_dismiss_guard(void)
{
	if (!raw.guard)
		return;
	close(raw.guard_pipe);
	while (waitpid(raw.guard, NULL, 0) < 0 && errno == EINTR)
		continue;
	raw.guard = 0;
}

int terminal_set_raw(int fd)
{
	struct termios settings;

	if (raw.fd >= 0)
		return 0;
	if (tcgetattr(fd, &raw.before) < 0)
		return -errno;
	if (!raw.armed)
		terminal_restore_at_exit();
	settings = raw.before;
	cfmakeraw(&settings);
	/* it knows the settings of now: a later set needs a new one */
	terminal_dismiss_guard();
	start_guard(fd, &settings);
	raw.fd = fd;
	if (tcsetattr(fd, TCSADRAIN, &settings) < 0) {
		raw.fd = -1;
		return -errno;
	}
	return 0;
}

void terminal_push_back(int fd, const char *bytes, size_t n)
{
	struct termios before, quiet;
	bool echoes;

	if (n == 0 || tcgetattr(fd, &before) < 0)
		return;
	quiet = before;
	quiet.c_lflag &= ~(tcflag_t)(ECHO | ECHONL | ISIG | IEXTEN);
	quiet.c_iflag &= ~(tcflag_t)(ICRNL | INLCR | IGNCR);
	echoes = (before.c_lflag & (ECHO | ISIG)) != 0;
	if (echoes)
		tcsetattr(fd, TCSANOW, &quiet);
	for (size_t i = 0; i < n; i++)
		if (ioctl(fd, TIOCSTI, &bytes[i]) < 0)
			break;
	if (echoes)
		tcsetattr(fd, TCSANOW, &before);
}

size_t terminal_unread(int master, char *bytes, size_t size)
{
	auto_close int slave = open_slave(master, NULL);
	struct termios before, keys;
	ssize_t n;
	size_t have = 0;

	if (slave < 0 || tcgetattr(slave, &before) < 0)
		return 0;
	keys = before;
	keys.c_lflag &= ~(tcflag_t)ICANON;
	keys.c_cc[VMIN] = keys.c_cc[VTIME] = 0;
	if (tcsetattr(slave, TCSANOW, &keys) < 0)
		return 0;
	while (have < size && (n = read(slave, bytes + have, size - have)) > 0)
		have += (size_t)n;
	tcsetattr(slave, TCSANOW, &before);
	return have;
}

bool terminal_has_unread(int master)
{
	auto_close int slave = open_slave(master, NULL);
	int n = 0;

	return slave >= 0 && ioctl(slave, TIOCINQ, &n) == 0 && n > 0;
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
