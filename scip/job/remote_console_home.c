/* The end of a remote console where the job was started. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <termios.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "base/log.h"
#include "proto/frame.h"
#include "proto/message.h"
#include "scip/job/remote_console.h"

enum { PIECE = 32768, SIZE_MS = 200 };

enum input { INPUT_NONE, INPUT_TTY, INPUT_PIPE, INPUT_SOCKET };

struct home {
	const struct job *job;
	enum input input;
	int copy[2];		 /* a pipe for what is looked at */
	uint64_t sent;		 /* position in standard input up to which it was sent ... */
	_Atomic uint64_t *taken; /* ... and read */
	bool input_ended;
	struct winsize size;
	struct remote_console_channel line; /* its lock is of *taken too */
};

/* A terminal as the program's own is elsewhere: nothing is done to what passes. */
static void make_raw(int fd)
{
	struct termios settings;

	if (tcgetattr(fd, &settings) < 0)
		return;
	cfmakeraw(&settings);
	tcsetattr(fd, TCSANOW, &settings);
}

static int terminal_of(const struct job *job)
{
	for (int i = 0; i < 3; i++)
		if (job->console[i] >= 0 && isatty(job->console[i]))
			return job->console[i];
	return -1;
}

static enum input input_of(const struct job *job)
{
	struct stat st;
	int fd = job->console[0];

	if (fd < 0 || fstat(fd, &st) < 0)
		return INPUT_NONE;
	if (isatty(fd))
		return INPUT_TTY;
	return S_ISFIFO(st.st_mode) ? INPUT_PIPE : S_ISSOCK(st.st_mode) ? INPUT_SOCKET : INPUT_NONE;
}

int remote_console_make_positions(struct job *job, struct err *err)
{
	void *page;

	if (job->console_positions)
		return 0;
	page = mmap(NULL, sizeof(*job->console_positions), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
		    -1, 0);
	if (page == MAP_FAILED)
		return err_sys(err, "count standard input");
	job->console_positions = page;
	return 0;
}

/* ---- what comes ---- */

static void take_data(struct home *h, const Pbeam__RemoteConsole *message)
{
	int fd = message->stream > 0 && message->stream < 3 ? h->job->console[message->stream] : -1;
	int tty = terminal_of(h->job);

	/* The terminal's own output comes as stream 1, whichever streams it is. */
	if (message->count == 0 && tty >= 0 && (fd < 0 || isatty(fd)))
		fd = tty;
	if (fd >= 0 && io_write_full(fd, message->data.data, message->data.len) < 0 &&
	    !remote_console_send(&h->line, PBEAM__CHANNEL_MESSAGE__REMOTE_CONSOLE_END, message->stream, NULL,
				 0, 0))
		log_debug("the console's other end is gone");
}

static void take_taken(struct home *h, uint64_t count)
{
	char bytes[PIECE];

	pthread_mutex_lock(&h->line.lock);
	while (*h->taken < count && *h->taken < h->sent && h->input != INPUT_TTY) {
		uint64_t left = (count < h->sent ? count : h->sent) - *h->taken;
		ssize_t n = read(h->job->console[0], bytes, left < PIECE ? left : PIECE);

		if (n <= 0)
			break;
		*h->taken += (uint64_t)n;
	}
	pthread_mutex_unlock(&h->line.lock);
}

static void *listen_guest(void *arg)
{
	struct home *h = arg;
	struct frame frame;

	while (frame_recv(h->line.channel, &frame, NULL) > 0) {
		Pbeam__RemoteConsole *message =
			(void *)frame_unpack(&frame, &pbeam__remote_console__descriptor, NULL);

		if (message && frame.type == PBEAM__CHANNEL_MESSAGE__REMOTE_CONSOLE_DATA)
			take_data(h, message);
		else if (message && frame.type == PBEAM__CHANNEL_MESSAGE__REMOTE_CONSOLE_TAKEN)
			take_taken(h, message->count);
		else if (message && frame.type == PBEAM__CHANNEL_MESSAGE__REMOTE_CONSOLE_FLUSH &&
			 !remote_console_send(&h->line, PBEAM__CHANNEL_MESSAGE__REMOTE_CONSOLE_FLUSHED, 0,
					      NULL, 0, message->count))
			log_debug("the console's other end is gone");
		message_free(message);
		frame_free(&frame);
	}
	_exit(0); /* what was typed and not sent waits for the next */
}

/* ---- what goes ---- */

/* What is there behind the bytes that were sent already, without taking any. 0: nothing new; -1: its end. */
static ssize_t look(struct home *h, char bytes[PIECE])
{
	int fd = h->job->console[0];
	uint64_t ahead = h->sent - *h->taken;
	ssize_t n = -1;

	if (ahead >= PIECE)
		return 0;
	if (h->input == INPUT_SOCKET)
		n = recv(fd, bytes, PIECE, MSG_PEEK | MSG_DONTWAIT);
	else {
		n = tee(fd, h->copy[1], PIECE, SPLICE_F_NONBLOCK);
		if (n > 0)
			n = io_read_full(h->copy[0], bytes, (size_t)n);
	}
	if (n == 0)
		return ahead ? 0 : -1;
	if (n < 0 || (uint64_t)n <= ahead)
		return 0;
	memmove(bytes, bytes + ahead, (size_t)n - ahead);
	return n - (ssize_t)ahead;
}

static bool send_input(struct home *h)
{
	char bytes[PIECE];
	ssize_t n;

	if (h->input == INPUT_TTY) {
		n = read(h->job->console[0], bytes, sizeof(bytes));
		if (n < 0 && errno != EAGAIN && errno != EINTR)
			h->input = INPUT_NONE;
	} else {
		pthread_mutex_lock(&h->line.lock);
		n = look(h, bytes);
		if (n > 0)
			h->sent += (uint64_t)n;
		pthread_mutex_unlock(&h->line.lock);
		if (n < 0) {
			h->input_ended = true;
			return remote_console_send(&h->line, PBEAM__CHANNEL_MESSAGE__REMOTE_CONSOLE_END, 0,
						   NULL, 0, 0);
		}
	}
	return n <= 0 || remote_console_send(&h->line, PBEAM__CHANNEL_MESSAGE__REMOTE_CONSOLE_DATA, 0, bytes,
					     (size_t)n, 0);
}

static bool send_size(struct home *h, int tty)
{
	struct winsize size;

	if (ioctl(tty, TIOCGWINSZ, &size) < 0 || memcmp(&size, &h->size, sizeof(size)) == 0)
		return true;
	h->size = size;
	return remote_console_send(&h->line, PBEAM__CHANNEL_MESSAGE__REMOTE_CONSOLE_WINSIZE, 0, &size,
				   sizeof(size), 0);
}

void remote_console_home_main(const struct job *job, int channel, const Pbeam__RemoteConsole *hello)
{
	struct home h = {.job = job,
			 .line.channel = channel,
			 .input = INPUT_NONE,
			 .copy = {-1, -1},
			 .taken = job->console_positions,
			 .line.lock = PTHREAD_MUTEX_INITIALIZER};
	int tty = terminal_of(job);
	pthread_t thread;

	if (hello->vpid == job->entry.root.n)
		h.input = input_of(job);
	h.sent = hello->fresh ? *h.taken : hello->given;
	if (!remote_console_send(&h.line, PBEAM__CHANNEL_MESSAGE__REMOTE_CONSOLE_START, 0, NULL, 0, h.sent))
		_exit(0);
	if (!hello->fresh)
		take_taken(&h, hello->count);
	setsid(); /* a terminal stops only readers of its own session */
	if (tty >= 0 && hello->vpid == job->entry.root.n)
		make_raw(tty);
	if (pipe2(h.copy, O_CLOEXEC) < 0 || pthread_create(&thread, NULL, listen_guest, &h) != 0)
		_exit(1);
	for (;;) {
		bool reads = h.input != INPUT_NONE && !h.input_ended;
		struct pollfd ready = {.fd = reads ? job->console[0] : -1, .events = POLLIN};
		/* What was sent and not taken keeps a pipe readable. */
		bool waits = reads && h.input != INPUT_TTY && h.sent != *h.taken;
		int n = poll(&ready, waits ? 0 : 1, waits ? SIZE_MS / 10 : tty >= 0 ? SIZE_MS : -1);

		if (tty >= 0 && !send_size(&h, tty))
			_exit(0);
		if ((n > 0 || waits) && !send_input(&h))
			_exit(0);
	}
}
