/*
 * The queues of a pseudo-terminal can only be read, not peeked at; but a holder of both sides can write the
 * data again. The program is frozen and notices nothing.
 *
 * Output (slave to master) is read from the master, packet mode off, and written to the slave again with
 * output processing off. Input (master to slave) is read from the slave in raw mode, which shows an
 * unfinished line as well, and written to the master again while the line discipline passes everything as it
 * is (no echo, no signals, no special characters), in canonical mode if that was set: then each newline
 * completes a line as it did. An end of file typed at the start of a line reads as a zero byte in raw mode;
 * it is written as the end-of-file character, which is the only one left on.
 *
 * Characters get to the other side by a kernel worker (flush_to_ldisc): settings are put back only once they
 * have arrived. FIONREAD counts complete lines, poll() waits for the worker when there are none.
 */
#include "scip/object/pty_queue.h"

#include <asm/termbits.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#include "base/io.h"
#include "scip/object/common.h"

int ioctl(int fd, unsigned long request, ...);
#include <asm/ioctls.h>

#define EOF_CHARACTER 4
#define SETTLE_US     5000u
#define WAIT_ROUNDS   400

static int pty_read_all(int fd, struct pty_bytes *out)
{
	struct pollfd poll_fd = {.fd = fd, .events = POLLIN};

	while (poll(&poll_fd, 1, 0) == 1 && poll_fd.revents & POLLIN) {
		char buf[4096], *bigger;
		ssize_t n = read(fd, buf, sizeof(buf));

		if (n < 0 && (errno == EAGAIN || errno == EIO))
			break;
		if (n < 0)
			return -errno;
		if (n == 0)
			break;
		bigger = realloc(out->data, out->len + (size_t)n);
		if (!bigger)
			return -ENOMEM;
		memcpy(bigger + out->len, buf, (size_t)n);
		out->data = bigger;
		out->len += (size_t)n;
	}
	return 0;
}

int pty_input_take(int slave, struct pty_bytes *out)
{
	return pty_read_all(slave, out);
}

int pty_output_put(int slave, const char *data, size_t len, struct err *err)
{
	struct termios2 old, raw;
	int blocking, r;

	if (ioctl(slave, TCGETS2, &old) < 0)
		return err_sys(err, "read a terminal's settings");
	raw = old;
	raw.c_oflag &= ~(tcflag_t)OPOST;
	blocking = object_set_nonblock(slave, true);
	if (blocking < 0 || ioctl(slave, TCSETS2, &raw) < 0)
		return err_sys(err, "set a terminal");
	r = io_write_full(slave, data, len);
	if (ioctl(slave, TCSETS2, &old) < 0 && r == 0)
		r = -errno;
	if (!blocking && object_set_nonblock(slave, false) < 0 && r == 0)
		r = -EIO;
	return r < 0 ? err_code(err, r, "put output back into a terminal") : 0;
}

int pty_output_look(int master, int slave, struct pty_bytes *out, struct err *err)
{
	struct pollfd poll_fd = {.fd = master, .events = POLLIN};
	auto_close int opened = -1;
	int packet = 0, off = 0, r;

	*out = (struct pty_bytes){NULL, 0};
	if (poll(&poll_fd, 1, 0) < 1 || !(poll_fd.revents & POLLIN))
		return 0;
	if (slave < 0) {
		slave = opened = ioctl(master, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
		if (slave < 0)
			return err_sys(err, "a terminal that cannot be opened");
	}
	if (ioctl(master, TIOCGPKT, &packet) == 0 && packet && ioctl(master, TIOCPKT, &off) < 0)
		return err_sys(err, "a terminal whose packet mode cannot be left");
	r = pty_read_all(master, out);
	if (r < 0)
		r = err_code(err, r, "a terminal whose output cannot be read");
	else
		r = pty_output_put(slave, out->data, out->len, err);
	if (packet && ioctl(master, TIOCPKT, &packet) < 0 && r == 0)
		r = err_sys(err, "a terminal whose packet mode cannot be set again");
	return r;
}

/* Nothing is interpreted; canonical mode and its end-of-file character stay if they were on. */
static struct termios2 terminal_literal(const struct termios2 *old)
{
	struct termios2 mode = *old;

	mode.c_iflag = 0;
	mode.c_lflag &= ICANON;
	memset(mode.c_cc, 0, sizeof(mode.c_cc));
	if (old->c_lflag & ICANON)
		mode.c_cc[VEOF] = EOF_CHARACTER;
	else
		mode.c_cc[VMIN] = 1;
	return mode;
}

/* Until the kernel's worker has passed on what was written: `complete` bytes are of whole lines. */
static int wait_arrived(int slave, size_t complete)
{
	struct pollfd poll_fd = {.fd = slave, .events = POLLIN};

	for (int i = 0; i < WAIT_ROUNDS; i++) {
		int n = 0;

		poll(&poll_fd, 1, 0);
		if (ioctl(slave, TIOCINQ, &n) < 0)
			return -errno;
		if ((size_t)n >= complete)
			break;
		usleep(500);
	}
	usleep(SETTLE_US); /* a last line that is not complete is not counted */
	return 0;
}

int pty_input_put(int master, int slave, const char *data, size_t len, struct err *err)
{
	struct termios2 old, mode;
	auto_free char *copy = malloc(len + 1);
	size_t complete = len;
	int blocking, r;

	if (len == 0)
		return 0;
	if (!copy)
		return object_no_memory(err);
	if (ioctl(slave, TCGETS2, &old) < 0)
		return err_sys(err, "read a terminal's settings");
	memcpy(copy, data, len);
	if (old.c_lflag & ICANON) {
		while (complete && data[complete - 1] != '\n')
			complete--;
		for (size_t i = 0; i < len; i++)
			if (copy[i] == 0)
				copy[i] = EOF_CHARACTER;
	}
	mode = terminal_literal(&old);
	blocking = object_set_nonblock(master, true);
	if (blocking < 0 || ioctl(slave, TCSETS2, &mode) < 0)
		return err_sys(err, "set a terminal");
	r = io_write_full(master, copy, len);
	if (r == 0)
		r = wait_arrived(slave, complete);
	if (ioctl(slave, TCSETS2, &old) < 0 && r == 0)
		r = -errno;
	if (!blocking && object_set_nonblock(master, false) < 0 && r == 0)
		r = -EIO;
	return r < 0 ? err_code(err, r, "put input back into a terminal") : 0;
}

int pty_input_look(int master, int slave, struct pty_bytes *out, struct err *err)
{
	struct termios2 old, raw;
	int r;

	*out = (struct pty_bytes){NULL, 0};
	if (ioctl(slave, TCGETS2, &old) < 0)
		return err_sys(err, "a terminal whose settings cannot be read");
	raw = terminal_literal(&old);
	raw.c_lflag = 0;
	raw.c_cc[VMIN] = 1;
	if (ioctl(slave, TCSETS2, &raw) < 0)
		return err_sys(err, "a terminal that cannot be set");
	r = pty_read_all(slave, out);
	if (ioctl(slave, TCSETS2, &old) < 0 && r == 0)
		r = -errno;
	if (r < 0)
		return err_code(err, r, "a terminal whose input cannot be read");
	return pty_input_put(master, slave, out->data, out->len, err);
}
