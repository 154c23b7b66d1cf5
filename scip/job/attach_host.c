/*
 * Attaching from another host than the one that has the job's console.
 *
 * pbeamd there starts `scip console` with a channel. It gives `scip attach` a pseudo-terminal of the size of
 * the user's and copies bytes. So everything that `scip attach` does with a terminal (raw mode, the detach
 * key, earlier output) is the same from every host, and if the console has moved on it attaches from there
 * again. Here the user's terminal is raw and every byte is sent. When the channel ends the pseudo-terminal is
 * hung up, and the job continues.
 *
 * The loops are poll's: two or three descriptors for the life of the process. libevent adds 0.4 us to each
 * event and nothing else (bench/event_loop.c).
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "base/log.h"
#include "channel/channel.h"
#include "proto/message.h"
#include "scip/job/attach.h"
#include "scip/job/user_terminal.h"

enum { CHANNEL_FD = 3, PIECE = 16384, STATUS_LOST = 125, LEAST_ROWS = 24, LEAST_COLUMNS = 80 };

static int attach_send(int channel, uint32_t type, const Pbeam__Attached *message, struct err *err)
{
	return frame_send(channel, type, &message->base, NULL, 0, err);
}

static int attach_send_bytes(int channel, const char *bytes, size_t n, struct err *err)
{
	Pbeam__Attached message = PBEAM__ATTACHED__INIT;

	message.data.data = (uint8_t *)(uintptr_t)bytes;
	message.data.len = n;
	return attach_send(channel, PBEAM__CHANNEL_MESSAGE__CONSOLE_DATA, &message, err);
}

static void fill_size(int tty, Pbeam__Attached *message)
{
	struct winsize size = {0};

	if (ioctl(tty, TIOCGWINSZ, &size) < 0 || !size.ws_row || !size.ws_col) {
		size.ws_row = LEAST_ROWS;
		size.ws_col = LEAST_COLUMNS;
	}
	message->rows = size.ws_row;
	message->columns = size.ws_col;
}

/* One message, unpacked, its type in *type. NULL at the channel's end, or when it is none of ours. */
static Pbeam__Attached *attach_receive(int channel, uint32_t *type, struct err *err)
{
	struct frame frame = {0};
	Pbeam__Attached *message = NULL;
	int r = frame_recv(channel, &frame, err);

	if (r == 0)
		err_set(err, -EPIPE, "the connection ended");
	if (r > 0)
		message = (void *)frame_unpack(&frame, &pbeam__attached__descriptor, err);
	*type = frame.type;
	frame_free(&frame);
	return message;
}

/* ---- where the user is ---- */

/* What has come from there. False: it is over, with *status. */
static bool attach_show_output(int channel, int *status)
{
	struct err err = ERR_INIT;
	uint32_t type;
	Pbeam__Attached *message = attach_receive(channel, &type, &err);
	bool goes_on = false;

	if (!message) {
		terminal_restore();
		fprintf(stderr, "scip: the console's host is lost, the job goes on: %s\n", err.text);
		*status = STATUS_LOST;
	} else if (type == PBEAM__CHANNEL_MESSAGE__CONSOLE_DATA) {
		goes_on = io_write_full(STDOUT_FILENO, message->data.data, message->data.len) == 0;
		*status = 128 + SIGHUP;
	} else {
		*status = message->status;
	}
	message_free(message);
	return goes_on;
}

static bool pass_typed(int channel)
{
	char bytes[PIECE];
	ssize_t n = read(STDIN_FILENO, bytes, sizeof(bytes));

	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return true;
	return n > 0 && attach_send_bytes(channel, bytes, (size_t)n, NULL) == 0;
}

/* False: the signal ends us, the job goes on. */
static bool attach_pass_signal(int channel, int signals)
{
	Pbeam__Attached message = PBEAM__ATTACHED__INIT;
	struct signalfd_siginfo info;

	if (read(signals, &info, sizeof(info)) != (ssize_t)sizeof(info) || info.ssi_signo != SIGWINCH)
		return false;
	fill_size(STDIN_FILENO, &message);
	return attach_send(channel, PBEAM__CHANNEL_MESSAGE__CONSOLE_SIZE, &message, NULL) == 0;
}

static int relay_user(int channel, int signals)
{
	int status = 128 + SIGHUP;

	for (;;) {
		struct pollfd fds[3] = {{.fd = channel, .events = POLLIN},
					{.fd = STDIN_FILENO, .events = POLLIN},
					{.fd = signals, .events = POLLIN}};

		if (poll(fds, 3, -1) < 0)
			continue;
		if (fds[0].revents && !attach_show_output(channel, &status))
			return status;
		if (fds[1].revents && !pass_typed(channel))
			return 128 + SIGHUP;
		if (fds[2].revents && !attach_pass_signal(channel, signals))
			return 128 + SIGHUP;
	}
}

int attach_there(const char *target, const char *host, struct err *err)
{
	auto_close int channel = channel_open(host, PBEAM__CHANNEL_KIND__CHANNEL_CONSOLE, NULL, err);
	Pbeam__Attached open = PBEAM__ATTACHED__INIT;
	auto_close int signals = -1;
	sigset_t set;
	int r = channel;

	if (channel < 0)
		return channel;
	open.target = (char *)(uintptr_t)target;
	fill_size(STDIN_FILENO, &open);
	sigemptyset(&set);
	sigaddset(&set, SIGWINCH);
	sigaddset(&set, SIGHUP);
	sigaddset(&set, SIGTERM);
	sigprocmask(SIG_BLOCK, &set, NULL);
	signal(SIGPIPE, SIG_IGN);
	signals = signalfd(-1, &set, SFD_CLOEXEC);
	if (signals < 0)
		r = err_sys(err, "watch signals");
	if (r >= 0)
		r = attach_send(channel, PBEAM__CHANNEL_MESSAGE__CONSOLE_OPEN, &open, err);
	if (r >= 0) {
		r = terminal_set_raw(STDIN_FILENO);
		if (r < 0)
			err_code(err, r, "set the terminal");
	}
	if (r < 0)
		return r;
	r = relay_user(channel, signals);
	terminal_restore();
	terminal_dismiss_guard();
	return r;
}

/* ---- where the console is ---- */

_Noreturn static void become_attach(const char *target, int slave)
{
	char path[PATH_MAX];
	int streams[3] = {slave, slave, slave};
	struct err err = ERR_INIT;

	setsid();
	signal(SIGPIPE, SIG_DFL);
	for (int fd = 0; fd < 3; fd++)
		if (dup2(slave, fd) < 0)
			_exit(STATUS_LOST);
	if (terminal_adopt(streams, &err) == 0 &&
	    io_readlink(AT_FDCWD, "/proc/self/exe", path, sizeof(path)) == 0)
		execl(path, "scip", "attach", "--", target, (char *)NULL);
	dprintf(STDERR_FILENO, "scip: the console cannot be shown%s%s\n", err.code ? ": " : "", err.text);
	_exit(STATUS_LOST);
}

static void set_size(int master, const Pbeam__Attached *message)
{
	const struct winsize size = {.ws_row = (unsigned short)message->rows,
				     .ws_col = (unsigned short)message->columns};

	if (ioctl(master, TIOCSWINSZ, &size) < 0)
		log_debug("the pseudo-terminal keeps its size");
}

/* Takes a frame of the user's. False: the user is gone. */
static bool attach_take_typed(int channel, int master)
{
	uint32_t type;
	Pbeam__Attached *message = attach_receive(channel, &type, NULL);
	bool goes_on = message != NULL;

	if (message && type == PBEAM__CHANNEL_MESSAGE__CONSOLE_SIZE)
		set_size(master, message);
	else if (message && type == PBEAM__CHANNEL_MESSAGE__CONSOLE_DATA)
		goes_on = io_write_full(master, message->data.data, message->data.len) == 0;
	message_free(message);
	return goes_on;
}

/* Runs until `scip attach` has ended and all its output is sent, or the user is gone. */
static void relay_console(int channel, int master)
{
	char bytes[PIECE];
	ssize_t n;

	for (;;) {
		struct pollfd fds[2] = {{.fd = channel, .events = POLLIN}, {.fd = master, .events = POLLIN}};

		if (poll(fds, 2, -1) < 0)
			continue;
		if (fds[0].revents && !attach_take_typed(channel, master))
			return;
		if (!fds[1].revents)
			continue;
		n = read(master, bytes, sizeof(bytes));
		if (n < 0 && (errno == EAGAIN || errno == EINTR))
			continue;
		if (n <= 0 || attach_send_bytes(channel, bytes, (size_t)n, NULL) < 0)
			return; /* EIO: the other side is closed */
	}
}

static int attach_serve_console(const Pbeam__Attached *wish, struct err *err)
{
	Pbeam__Attached end = PBEAM__ATTACHED__INIT;
	int master = -1, slave = -1, status = 0, r = terminal_make_pty(-1, &master, &slave, err);
	pid_t child;

	if (r < 0)
		return r;
	set_size(master, wish);
	child = fork();
	if (child == 0)
		become_attach(wish->target, slave);
	close(slave);
	if (child < 0) {
		close(master);
		return err_sys(err, "show the console");
	}
	fcntl(master, F_SETFL, fcntl(master, F_GETFL) & ~O_NONBLOCK);
	relay_console(CHANNEL_FD, master);
	close(master); /* it is hung up, if it is still there */
	if (waitpid(child, &status, 0) < 0)
		return err_sys(err, "wait for the console");
	end.status = WIFEXITED(status) ? WEXITSTATUS(status) : STATUS_LOST;
	return attach_send(CHANNEL_FD, PBEAM__CHANNEL_MESSAGE__CONSOLE_END, &end, err);
}

int attach_serve(void)
{
	struct err err = ERR_INIT;
	Pbeam__Attached *wish;
	uint32_t type;
	int r = -EPROTO;

	if (fcntl(CHANNEL_FD, F_SETFD, FD_CLOEXEC) < 0)
		return EXIT_FAILURE;
	signal(SIGPIPE, SIG_IGN);
	wish = attach_receive(CHANNEL_FD, &type, &err);
	if (wish && type == PBEAM__CHANNEL_MESSAGE__CONSOLE_OPEN)
		r = attach_serve_console(wish, &err);
	message_free(wish);
	if (r < 0)
		log_info("console: %s", err.text);
	return r < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}
