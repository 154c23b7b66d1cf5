/* The end of a remote console where the job was started. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/ioctl.h>
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
#include "scip/job/remote_console_output.h"
#include "scip/job/remote_console_positions.h"

enum { SIZE_MS = 200 };

enum input { INPUT_NONE, INPUT_TTY, INPUT_PIPE, INPUT_SOCKET };

/* Output that is not written yet, or the wish for a report when all before it is written. */
struct queued {
	struct queued *next;
	Pbeam__RemoteConsole *message;
	bool flush;
};

struct home {
	const struct job *job;
	enum input input;
	int copy[2]; /* a pipe for what is looked at */
	uint64_t
		sent; /* position in standard input up to which it was sent; read: console_positions->taken */
	bool input_ended;
	struct winsize size;
	struct console_part *part;
	uint64_t received[CONSOLE_STREAMS]; /* positions in the output up to which it has come */
	pthread_t writer;
	pthread_mutex_t queue_lock; /* of the following */
	pthread_cond_t queue_filled;
	struct queued *first, *last;
	bool writing; /* the writer may be in a write */
	_Atomic bool ending;
	struct remote_console_channel link; /* its lock is of console_positions->taken too */
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
	if (!job->console_positions)
		job->console_positions = console_positions_make(err);
	return job->console_positions ? 0 : -ENOMEM;
}

/* ---- output ---- */

/* The guest's end sends its terminal's output as stream 0. -1: it leads nowhere. */
static int console_fd(const struct home *h, int stream)
{
	if (stream == 0)
		return terminal_of(h->job);
	return stream > 0 && stream < CONSOLE_STREAMS ? h->job->console[stream] : -1;
}

/* Takes the signal that ends a write in between. */
static void wake_writer(int signal)
{
	(void)signal;
}

/* Ends this process when the writer is between two writes, so that no written byte is uncounted. In any
 * thread but the writer's. */
_Noreturn static void end_home(struct home *h)
{
	const struct timespec nap = {.tv_nsec = 5000000};

	for (;;) {
		pthread_mutex_lock(&h->queue_lock);
		h->ending = true;
		if (!h->writing)
			_exit(0);
		pthread_mutex_unlock(&h->queue_lock);
		pthread_kill(h->writer, SIGUSR2);
		nanosleep(&nap, NULL);
	}
}

/* A thread: the keeper ends this process with SIGTERM. */
static void *await_end(void *arg)
{
	sigset_t term;
	int signal;

	sigemptyset(&term);
	sigaddset(&term, SIGTERM);
	while (sigwait(&term, &signal) != 0)
		continue;
	end_home(arg);
}

/* Writes a piece to the console and counts what was written. */
static void write_piece(struct home *h, const Pbeam__RemoteConsole *message)
{
	const int fd = console_fd(h, message->stream);
	_Atomic uint64_t *written = &h->part->written[message->stream];
	size_t done = 0;

	while (done < message->data.len && fd >= 0) {
		ssize_t n = write(fd, message->data.data + done, message->data.len - done);

		if (n > 0) {
			done += (size_t)n;
			atomic_fetch_add(written, (uint64_t)n);
		} else if (n < 0 && errno != EINTR && errno != EAGAIN) {
			break;
		}
		if (h->ending)
			_exit(0);
	}
	if (done == message->data.len)
		return;
	/* The console's stream is closed: the rest is of no use. */
	atomic_fetch_add(written, message->data.len - done);
	if (message->stream > 0 && !remote_console_send(&h->link, PBEAM__CHANNEL_MESSAGE__REMOTE_CONSOLE_END,
							message->stream, NULL, 0, 0))
		log_debug("the console's other end is gone");
}

/* The next of the queue. From then on `writing` holds for output. */
static struct queued next_output(struct home *h)
{
	struct queued *first, next;

	pthread_mutex_lock(&h->queue_lock);
	while (!h->first || h->ending)
		pthread_cond_wait(&h->queue_filled, &h->queue_lock);
	first = h->first;
	next = *first;
	h->first = next.next;
	h->writing = !next.flush;
	pthread_mutex_unlock(&h->queue_lock);
	free(first);
	return next;
}

/* A thread. The receiver never waits for the console, so that the guest's end is not taken for dead. */
_Noreturn static void *write_output(void *arg)
{
	struct home *h = arg;

	for (;;) {
		struct queued next = next_output(h);
		const int stream = next.message->stream;
		bool sent;

		if (next.flush) {
			sent = remote_console_send(&h->link, PBEAM__CHANNEL_MESSAGE__REMOTE_CONSOLE_FLUSHED,
						   0, NULL, 0, next.message->count);
		} else {
			write_piece(h, next.message);
			pthread_mutex_lock(&h->queue_lock);
			h->writing = false;
			pthread_mutex_unlock(&h->queue_lock);
			sent = remote_console_send(&h->link, PBEAM__CHANNEL_MESSAGE__REMOTE_CONSOLE_WRITTEN,
						   stream, NULL, 0, atomic_load(&h->part->written[stream]));
		}
		if (!sent)
			log_debug("the console's other end is gone");
		message_free(next.message);
	}
}

/* Takes the message. False: it is none that can be written. */
static bool queue_output(struct home *h, Pbeam__RemoteConsole *message, bool flush)
{
	struct queued *new = calloc(1, sizeof(*new));
	const bool known = message->stream >= 0 && message->stream < CONSOLE_STREAMS;

	/* The window holds for every stream; a message out of order is of an end that miscounts. */
	if (!new ||
	    (!flush && (!known || message->count != h->received[message->stream] ||
			message->count + message->data.len - atomic_load(&h->part->written[message->stream]) >
				CONSOLE_WINDOW))) {
		log_warn("vpid %d: its console sent output that does not fit", h->part->vpid);
		message_free(message);
		free(new);
		return false;
	}
	*new = (struct queued){.message = message, .flush = flush};
	if (!flush)
		h->received[message->stream] += message->data.len;
	pthread_mutex_lock(&h->queue_lock);
	if (h->first)
		h->last->next = new;
	else
		h->first = new;
	h->last = new;
	pthread_cond_signal(&h->queue_filled);
	pthread_mutex_unlock(&h->queue_lock);
	return true;
}

/* ---- frames ---- */

static void take_input(struct home *h, uint64_t count)
{
	_Atomic uint64_t *taken = &h->job->console_positions->taken;
	char bytes[CONSOLE_PIECE];

	pthread_mutex_lock(&h->link.lock);
	while (*taken < count && *taken < h->sent && h->input != INPUT_TTY) {
		uint64_t left = (count < h->sent ? count : h->sent) - *taken;
		ssize_t n = read(h->job->console[0], bytes, left < sizeof(bytes) ? left : sizeof(bytes));

		if (n <= 0)
			break;
		*taken += (uint64_t)n;
	}
	pthread_mutex_unlock(&h->link.lock);
}

/* A thread: receives until the channel is gone. What was typed and not sent waits for the next. */
static void *receive_from_guest(void *arg)
{
	struct home *h = arg;
	struct frame frame;
	bool goes_on = true;

	while (goes_on && frame_recv(h->link.channel, &frame, NULL) > 0) {
		Pbeam__RemoteConsole *message =
			(void *)frame_unpack(&frame, &pbeam__remote_console__descriptor, NULL);

		if (!message)
			goes_on = false;
		else if (frame.type == PBEAM__CHANNEL_MESSAGE__REMOTE_CONSOLE_DATA)
			goes_on = queue_output(h, message, false);
		else if (frame.type == PBEAM__CHANNEL_MESSAGE__REMOTE_CONSOLE_FLUSH)
			goes_on = queue_output(h, message, true);
		else {
			if (frame.type == PBEAM__CHANNEL_MESSAGE__REMOTE_CONSOLE_TAKEN)
				take_input(h, message->count);
			message_free(message);
		}
		frame_free(&frame);
	}
	end_home(h);
}

/* ---- input ---- */

/* What is there behind the bytes that were sent already, without taking any. 0: nothing new; -1: its end. */
static ssize_t look(struct home *h, char bytes[CONSOLE_PIECE])
{
	int fd = h->job->console[0];
	uint64_t ahead = h->sent - h->job->console_positions->taken;
	ssize_t n = -1;

	if (ahead >= CONSOLE_PIECE)
		return 0;
	if (h->input == INPUT_SOCKET)
		n = recv(fd, bytes, CONSOLE_PIECE, MSG_PEEK | MSG_DONTWAIT);
	else {
		n = tee(fd, h->copy[1], CONSOLE_PIECE, SPLICE_F_NONBLOCK);
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
	char bytes[CONSOLE_PIECE];
	ssize_t n;

	if (h->input == INPUT_TTY) {
		n = read(h->job->console[0], bytes, sizeof(bytes));
		if (n < 0 && errno != EAGAIN && errno != EINTR)
			h->input = INPUT_NONE;
	} else {
		pthread_mutex_lock(&h->link.lock);
		n = look(h, bytes);
		if (n > 0)
			h->sent += (uint64_t)n;
		pthread_mutex_unlock(&h->link.lock);
		if (n < 0) {
			h->input_ended = true;
			return remote_console_send(&h->link, PBEAM__CHANNEL_MESSAGE__REMOTE_CONSOLE_END, 0,
						   NULL, 0, 0);
		}
	}
	return n <= 0 || remote_console_send(&h->link, PBEAM__CHANNEL_MESSAGE__REMOTE_CONSOLE_DATA, 0, bytes,
					     (size_t)n, 0);
}

static bool send_size(struct home *h, int tty)
{
	struct winsize size;

	if (ioctl(tty, TIOCGWINSZ, &size) < 0 || memcmp(&size, &h->size, sizeof(size)) == 0)
		return true;
	h->size = size;
	return remote_console_send(&h->link, PBEAM__CHANNEL_MESSAGE__REMOTE_CONSOLE_WINSIZE, 0, &size,
				   sizeof(size), 0);
}

static bool start_guest(struct home *h)
{
	Pbeam__RemoteConsole start = PBEAM__REMOTE_CONSOLE__INIT;

	start.count = h->sent;
	start.written = h->received;
	start.n_written = CONSOLE_STREAMS;
	return frame_send(h->link.channel, PBEAM__CHANNEL_MESSAGE__REMOTE_CONSOLE_START, &start.base, NULL, 0,
			  NULL) == 0;
}

static void start_threads(struct home *h)
{
	const struct sigaction wake = {.sa_handler = wake_writer}; /* without SA_RESTART */
	pthread_t thread;

	if (sigaction(SIGUSR2, &wake, NULL) < 0 || pthread_create(&h->writer, NULL, write_output, h) != 0 ||
	    pthread_create(&thread, NULL, await_end, h) != 0 ||
	    pthread_create(&thread, NULL, receive_from_guest, h) != 0)
		_exit(1);
}

/* Ends as end_home() does, which the receiver calls when the channel is gone. */
static void serve_input(struct home *h, int tty)
{
	for (;;) {
		bool reads = h->input != INPUT_NONE && !h->input_ended;
		struct pollfd ready = {.fd = reads ? h->job->console[0] : -1, .events = POLLIN};
		/* What was sent and not taken keeps a pipe readable. */
		bool waits = reads && h->input != INPUT_TTY && h->sent != h->job->console_positions->taken;
		int n = poll(&ready, waits ? 0 : 1, waits ? SIZE_MS / 10 : tty >= 0 ? SIZE_MS : -1);

		if (tty >= 0 && !send_size(h, tty))
			return;
		if ((n > 0 || waits) && !send_input(h))
			return;
	}
}

void remote_console_home_main(const struct job *job, int channel, const Pbeam__RemoteConsole *hello)
{
	struct home h = {.job = job,
			 .link.channel = channel,
			 .input = INPUT_NONE,
			 .copy = {-1, -1},
			 .link.lock = PTHREAD_MUTEX_INITIALIZER,
			 .queue_lock = PTHREAD_MUTEX_INITIALIZER,
			 .queue_filled = PTHREAD_COND_INITIALIZER};
	const int tty = terminal_of(job);
	sigset_t term;

	if (hello->vpid == job->entry.root.n)
		h.input = input_of(job);
	h.part = console_positions_claim(job->console_positions, hello);
	if (!h.part) {
		log_error("job %s: too many parts of it are on other hosts for its console", job->entry.uuid);
		_exit(1);
	}
	sigemptyset(&term);
	sigaddset(&term, SIGTERM);
	pthread_sigmask(SIG_BLOCK, &term, NULL);
	for (int i = 0; i < CONSOLE_STREAMS; i++)
		h.received[i] = atomic_load(&h.part->written[i]);
	h.sent = hello->fresh ? job->console_positions->taken : hello->given;
	if (!start_guest(&h))
		_exit(0);
	if (!hello->fresh)
		take_input(&h, hello->count);
	setsid(); /* a terminal stops only readers of its own session */
	if (tty >= 0 && hello->vpid == job->entry.root.n)
		make_raw(tty);
	if (pipe2(h.copy, O_CLOEXEC) < 0)
		_exit(1);
	start_threads(&h);
	serve_input(&h, tty);
	end_home(&h);
}
