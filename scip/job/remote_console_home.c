/* The end of a remote console where the job was started: in the process that carries the job's links. */
#include <errno.h>
#include <event2/event.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <termios.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/io.h"
#include "base/list.h"
#include "base/log.h"
#include "scip/job/link_process.h"
#include "scip/job/remote_console.h"
#include "scip/job/remote_console_output.h"
#include "scip/job/remote_console_positions.h"

enum { LOOK_MS = 20, SIZE_MS = 200, KICK_MS = 5, TYPED_MAX = 4096 };

enum input { INPUT_NONE, INPUT_TTY, INPUT_PIPE, INPUT_SOCKET };

/* Output that is not written yet, or the wish for a report when all before it is written. */
struct queued {
	struct queued *next;
	uint64_t count;
	int stream; /* -1: a flush */
	size_t len;
	uint8_t bytes[];
};

/* The console of one part of the job that is elsewhere. */
struct console_home {
	struct console_home *next;
	struct link_process *process;
	struct link_incoming *incoming; /* NULL: it is ending */
	struct console_part *part;
	enum input input;
	struct event *readable; /* standard input; NULL where it is not for this part */
	struct event *look;	/* at it again: what was sent and not taken keeps it readable */
	struct event *resize;	/* looks at the size of the terminal */
	struct event *kick;	/* while it is ending */
	uint64_t
		sent; /* position in standard input up to which it was sent; read: console_positions->taken */
	bool input_ended;
	struct winsize size;
	uint64_t received[CONSOLE_STREAMS]; /* positions in the output up to which it has come */
	uint64_t reported[CONSOLE_STREAMS]; /* ... and up to which it is confirmed */
	/* A thread writes: the console may not be read. */
	pthread_t writer;
	pthread_mutex_t queue_lock; /* of the queue */
	pthread_cond_t queue_filled;
	struct queued *first, *last;
	uint64_t flush, flushed; /* the last flush that was reached (with the lock), and that was reported */
	_Atomic bool closed[CONSOLE_STREAMS];
	bool close_reported[CONSOLE_STREAMS];
	_Atomic bool ending, ended;
	int written; /* eventfd: the writer has something to report */
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

static void home_send(const struct console_home *h, uint32_t type, int stream, const void *data, size_t len,
		      uint64_t count)
{
	Pbeam__RemoteConsole message = PBEAM__REMOTE_CONSOLE__INIT;

	message.stream = stream;
	message.data.data = (uint8_t *)(uintptr_t)data;
	message.data.len = len;
	message.count = count;
	if (h->incoming)
		link_incoming_send(h->incoming, type, &message);
}

/* ---- output: the writer's thread ---- */

/* The guest's end sends its terminal's output as stream 0. -1: it leads nowhere. */
static int console_fd(const struct console_home *h, int stream)
{
	return stream == 0 ? terminal_of(h->process->job) : h->process->job->console[stream];
}

/* Takes the signal that ends a write in between. */
static void wake_writer(int signal)
{
	(void)signal;
}

static void home_wake_loop(const struct console_home *h)
{
	if (write(h->written, &(uint64_t){1}, sizeof(uint64_t)) < 0)
		log_error("console: eventfd: %s", strerror(errno));
}

/* Writes a piece to the console and counts what was written. It ends only between two writes, so that no
 * written byte is uncounted. */
static void home_write_piece(struct console_home *h, const struct queued *piece)
{
	const int fd = console_fd(h, piece->stream);
	_Atomic uint64_t *written = &h->part->written[piece->stream];
	size_t done = 0;

	while (done < piece->len && fd >= 0 && !h->ending) {
		ssize_t n = write(fd, piece->bytes + done, piece->len - done);

		if (n > 0) {
			done += (size_t)n;
			atomic_fetch_add(written, (uint64_t)n);
		} else if (n < 0 && errno != EINTR && errno != EAGAIN) {
			break;
		}
	}
	if (done == piece->len || h->ending)
		return;
	/* The console's stream is closed: the rest is of no use. */
	atomic_fetch_add(written, piece->len - done);
	if (piece->stream > 0)
		atomic_store(&h->closed[piece->stream], true);
}

/* NULL: there will be none any more. */
static struct queued *home_next_output(struct console_home *h)
{
	struct queued *first;

	pthread_mutex_lock(&h->queue_lock);
	while (!h->first && !h->ending)
		pthread_cond_wait(&h->queue_filled, &h->queue_lock);
	first = h->ending ? NULL : h->first;
	if (first)
		h->first = first->next;
	pthread_mutex_unlock(&h->queue_lock);
	return first;
}

static void *home_writer_main(void *arg)
{
	struct console_home *h = arg;
	struct queued *next;

	while ((next = home_next_output(h)) != NULL) {
		if (next->stream < 0) {
			pthread_mutex_lock(&h->queue_lock);
			h->flush = next->count;
			pthread_mutex_unlock(&h->queue_lock);
		} else {
			home_write_piece(h, next);
		}
		free(next);
		home_wake_loop(h);
	}
	atomic_store(&h->ended, true);
	home_wake_loop(h);
	return NULL;
}

/* ---- output: the loop ---- */

/* False: no memory. */
static bool home_queue_output(struct console_home *h, const Pbeam__RemoteConsole *message, bool flush)
{
	struct queued *new = malloc(sizeof(*new) + message->data.len);

	if (!new)
		return false;
	*new = (struct queued){
		.count = message->count, .stream = flush ? -1 : message->stream, .len = message->data.len};
	bytes_copy(new->bytes, message->data.data, new->len);
	if (!flush)
		h->received[message->stream] += new->len;
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

/* The window holds for every stream; a message out of order is of an end that miscounts. */
static bool home_output_fits(const struct console_home *h, const Pbeam__RemoteConsole *message)
{
	return message->stream >= 0 && message->stream < CONSOLE_STREAMS &&
	       message->count == h->received[message->stream] &&
	       message->count + message->data.len - atomic_load(&h->part->written[message->stream]) <=
		       CONSOLE_WINDOW;
}

/* To the coordinator that waits, if one does. */
static void report_ended(const struct link_process *process)
{
	for (const struct console_home *h = process->homes; h; h = h->next)
		if (!h->incoming)
			return;
	console_positions_ended(process->job->console_positions);
}

static void home_free(struct console_home *h)
{
	struct link_process *process = h->process;

	list_remove(&process->homes, h);
	pthread_join(h->writer, NULL);
	while (h->first) {
		struct queued *first = h->first;

		h->first = first->next;
		free(first);
	}
	event_free(h->kick);
	console_positions_release(h->part);
	free(h);
	report_ended(process);
	if (process->terminating && !process->homes)
		_exit(0);
}

/* The writer reports what it has written. */
static void home_report_written(struct console_home *h)
{
	uint64_t flush;

	for (int i = 0; i < CONSOLE_STREAMS; i++) {
		const uint64_t written = atomic_load(&h->part->written[i]);

		if (written != h->reported[i])
			home_send(h, PBEAM__CHANNEL_MESSAGE__REMOTE_CONSOLE_WRITTEN, i, NULL, 0, written);
		h->reported[i] = written;
		if (atomic_load(&h->closed[i]) && !h->close_reported[i])
			home_send(h, PBEAM__CHANNEL_MESSAGE__REMOTE_CONSOLE_END, i, NULL, 0, 0);
		h->close_reported[i] = atomic_load(&h->closed[i]);
	}
	pthread_mutex_lock(&h->queue_lock);
	flush = h->flush;
	pthread_mutex_unlock(&h->queue_lock);
	if (flush != h->flushed)
		home_send(h, PBEAM__CHANNEL_MESSAGE__REMOTE_CONSOLE_FLUSHED, 0, NULL, 0, flush);
	h->flushed = flush;
}

static void on_written(evutil_socket_t fd, short events, void *arg)
{
	struct link_process *process = arg;
	struct console_home *next;
	uint64_t count;

	(void)!read(fd, &count, sizeof(count));
	for (struct console_home *h = process->homes; h; h = next) {
		next = h->next;
		if (h->incoming)
			home_report_written(h);
		else if (atomic_load(&h->ended))
			home_free(h);
	}
}

/* ---- input ---- */

/* What is there behind the bytes that were sent already, without taking any. 0: nothing new; -1: its end. */
static ssize_t home_look_at_input(const struct console_home *h, char bytes[CONSOLE_PIECE])
{
	const uint64_t ahead = h->sent - h->process->job->console_positions->taken;
	const int fd = h->process->job->console[0];
	ssize_t n = -1;

	if (ahead >= CONSOLE_PIECE)
		return 0;
	if (h->input == INPUT_SOCKET) {
		n = recv(fd, bytes, CONSOLE_PIECE, MSG_PEEK | MSG_DONTWAIT);
	} else {
		int copy[2];

		if (pipe2(copy, O_CLOEXEC) < 0)
			return 0;
		n = tee(fd, copy[1], CONSOLE_PIECE, SPLICE_F_NONBLOCK);
		if (n > 0)
			n = io_read_full(copy[0], bytes, (size_t)n);
		close(copy[0]);
		close(copy[1]);
	}
	if (n == 0)
		return ahead ? 0 : -1;
	if (n < 0 || (uint64_t)n <= ahead)
		return 0;
	memmove(bytes, bytes + ahead, (size_t)n - ahead);
	return n - (ssize_t)ahead;
}

/* What was typed cannot be looked at, so at most TYPED_MAX bytes are under way. */
static ssize_t home_read_typed(struct console_home *h, char bytes[CONSOLE_PIECE])
{
	const uint64_t ahead = h->sent - h->process->job->console_positions->taken;
	ssize_t n = ahead < TYPED_MAX ? read(h->process->job->console[0], bytes, TYPED_MAX - ahead) : 0;

	if (n < 0 && errno != EAGAIN && errno != EINTR)
		h->input = INPUT_NONE;
	return n < 0 ? 0 : n;
}

/* Watches standard input, or, while what is there was sent already, looks at it from time to time. */
static void home_await_input(const struct console_home *h)
{
	const uint64_t taken = h->process->job->console_positions->taken;

	if (!h->readable || h->input == INPUT_NONE || h->input_ended)
		return;
	if (h->sent == taken || (h->input == INPUT_TTY && h->sent - taken < TYPED_MAX))
		event_add(h->readable, NULL);
	else
		link_process_timer_start(h->look, LOOK_MS);
}

static void on_input(evutil_socket_t fd, short events, void *arg)
{
	struct console_home *h = arg;
	char bytes[CONSOLE_PIECE];
	const ssize_t n = h->input == INPUT_TTY ? events & EV_READ ? home_read_typed(h, bytes)
								   : 0 /* else a read might block */
						: home_look_at_input(h, bytes);

	if (n < 0) {
		h->input_ended = true;
		home_send(h, PBEAM__CHANNEL_MESSAGE__REMOTE_CONSOLE_END, 0, NULL, 0, 0);
	} else if (n > 0) {
		h->sent += (uint64_t)n;
		home_send(h, PBEAM__CHANNEL_MESSAGE__REMOTE_CONSOLE_DATA, 0, bytes, (size_t)n, 0);
	}
	home_await_input(h);
}

/* The program has read standard input up to `count`: so does this end. Not beyond what is there, whatever the
 * other host says: a read would wait for it, and all links of the job with it. */
static void home_take_input(const struct console_home *h, uint64_t count)
{
	_Atomic uint64_t *taken = &h->process->job->console_positions->taken;
	char bytes[CONSOLE_PIECE];

	if (count > h->sent)
		count = h->sent;
	while (*taken < count && h->input != INPUT_TTY) {
		uint64_t left = count - *taken;
		int there = 0;
		ssize_t n;

		if (ioctl(h->process->job->console[0], FIONREAD, &there) < 0 || there <= 0)
			break;
		if (left > (uint64_t)there)
			left = (uint64_t)there;
		n = read(h->process->job->console[0], bytes, left < sizeof(bytes) ? left : sizeof(bytes));
		if (n <= 0)
			break;
		*taken += (uint64_t)n;
	}
	if (h->input == INPUT_TTY && *taken < count)
		*taken = count;
}

static void on_resize(int fd, short events, void *arg)
{
	const int tty = terminal_of(((struct console_home *)arg)->process->job);
	struct console_home *h = arg;
	struct winsize size;

	link_process_timer_start(h->resize, SIZE_MS);
	if (ioctl(tty, TIOCGWINSZ, &size) < 0 || memcmp(&size, &h->size, sizeof(size)) == 0)
		return;
	h->size = size;
	home_send(h, PBEAM__CHANNEL_MESSAGE__REMOTE_CONSOLE_WINSIZE, 0, &size, sizeof(size), 0);
}

/* ---- beginning and end ---- */

static void on_kick(int fd, short events, void *arg)
{
	struct console_home *h = arg;

	if (atomic_load(&h->ended)) {
		home_free(h);
		return;
	}
	pthread_kill(h->writer, SIGUSR2);
	link_process_timer_start(h->kick, KICK_MS);
}

/* Nothing is read from the console any more. What is not written stays with the guest's end. */
static void home_end(struct console_home *h)
{
	if (!h->incoming)
		return;
	h->incoming = NULL;
	if (h->readable)
		event_free(h->readable);
	event_free(h->look);
	event_free(h->resize);
	h->readable = h->look = h->resize = NULL;
	pthread_mutex_lock(&h->queue_lock);
	h->ending = true;
	pthread_cond_signal(&h->queue_filled);
	pthread_mutex_unlock(&h->queue_lock);
	on_kick(-1, 0, h);
}

void console_home_lost(struct link_process *process, const struct link_incoming *incoming)
{
	struct console_home *next;

	for (struct console_home *h = process->homes; h; h = next) {
		next = h->next;
		if (h->incoming == incoming)
			home_end(h);
	}
}

static void home_refuse(struct link_incoming *incoming)
{
	const Pbeam__RemoteConsole message = PBEAM__REMOTE_CONSOLE__INIT;

	link_incoming_send(incoming, PBEAM__CHANNEL_MESSAGE__REMOTE_CONSOLE_REFUSED, &message);
}

void console_home_terminate(struct link_process *process)
{
	struct console_home *next;

	process->terminating = true;
	if (!process->homes)
		_exit(0);
	for (struct console_home *h = process->homes; h; h = next) {
		next = h->next;
		home_end(h);
	}
}

/* A coordinator wishes that a part's console, or all, ends: see console_positions_end(). */
static void on_end_wanted(evutil_socket_t fd, short events, void *arg)
{
	struct link_process *process = arg;
	const int32_t vpid = console_positions_wanted(process->job->console_positions);
	struct console_home *next;

	for (struct console_home *h = process->homes; h; h = next) {
		next = h->next;
		if (!h->incoming || (vpid && h->part->vpid != vpid))
			continue;
		home_refuse(h->incoming);
		home_end(h);
	}
	report_ended(process);
}

static bool has_stubs(const struct job *job)
{
	auto_free struct name_process *all = NULL;
	int n = names_snapshot(job->names, job->entry.keeper, &all);

	for (int i = 0; i < n; i++)
		if (all[i].state == NAME_STATE_STUB || all[i].state == NAME_STATE_FROZEN)
			return true; /* frozen: a stub whose process is returning */
	return false;
}

static bool home_start_writer(struct console_home *h)
{
	sigset_t all, old;
	int r;

	pthread_mutex_init(&h->queue_lock, NULL);
	pthread_cond_init(&h->queue_filled, NULL);
	sigfillset(&all);
	sigdelset(&all, SIGUSR2);
	pthread_sigmask(SIG_SETMASK, &all, &old); /* the loop gets the other signals */
	r = pthread_create(&h->writer, NULL, home_writer_main, h);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	return r == 0;
}

static void home_start_guest(struct console_home *h, const Pbeam__RemoteConsole *hello)
{
	Pbeam__RemoteConsole start = PBEAM__REMOTE_CONSOLE__INIT;

	for (int i = 0; i < CONSOLE_STREAMS; i++)
		h->received[i] = h->reported[i] = atomic_load(&h->part->written[i]);
	h->sent = hello->fresh ? h->process->job->console_positions->taken : hello->given;
	if (!hello->fresh)
		home_take_input(h, hello->count);
	start.count = h->sent;
	start.written = h->received;
	start.n_written = CONSOLE_STREAMS;
	link_incoming_send(h->incoming, PBEAM__CHANNEL_MESSAGE__REMOTE_CONSOLE_START, &start);
}

static void home_start(struct link_process *process, struct link_incoming *incoming,
		       const Pbeam__RemoteConsole *hello)
{
	const bool root = hello->vpid == process->job->entry.root.n;
	const int tty = terminal_of(process->job);
	struct console_home *h = calloc(1, sizeof(*h));

	if (!h)
		return;
	*h = (struct console_home){.process = process,
				   .incoming = incoming,
				   .input = root ? input_of(process->job) : INPUT_NONE,
				   .written = event_get_fd(process->home_written)};
	h->part = console_positions_claim(process->job->console_positions, hello);
	if (!h->part || !home_start_writer(h)) {
		log_error("job %s: too many parts of it are on other hosts for its console",
			  process->job->entry.uuid);
		if (h->part)
			console_positions_release(h->part);
		free(h);
		return;
	}
	h->look = link_process_timer(process, on_input, h);
	h->resize = link_process_timer(process, on_resize, h);
	h->kick = link_process_timer(process, on_kick, h);
	if (h->input != INPUT_NONE)
		h->readable = event_new(process->base, process->job->console[0], EV_READ, on_input, h);
	h->next = process->homes;
	process->homes = h;
	home_start_guest(h, hello);
	if (tty >= 0 && root)
		make_raw(tty);
	if (tty >= 0)
		on_resize(-1, 0, h);
	home_await_input(h);
}

/* Refused for a while: a caller that is replaced, and one whose console is still ending. */
static void home_take_hello(struct link_process *process, struct link_incoming *incoming,
			    const Pbeam__RemoteConsole *hello)
{
	struct console_home *older = process->homes;

	while (older && older->part->vpid != hello->vpid)
		older = older->next;
	if (older)
		home_end(older);
	if (older || process->terminating || !has_stubs(process->job))
		home_refuse(incoming);
	else
		home_start(process, incoming, hello);
}

void console_home_frame(struct link_process *process, struct link_incoming *incoming, uint32_t type,
			const Pbeam__RemoteConsole *message)
{
	const bool data = type == PBEAM__CHANNEL_MESSAGE__REMOTE_CONSOLE_DATA;
	struct console_home *h = process->homes;

	if (type == PBEAM__CHANNEL_MESSAGE__REMOTE_CONSOLE_HELLO) {
		home_take_hello(process, incoming, message);
		return;
	}
	while (h && h->incoming != incoming)
		h = h->next;
	if (!h)
		return;
	if (data || type == PBEAM__CHANNEL_MESSAGE__REMOTE_CONSOLE_FLUSH) {
		if ((data && !home_output_fits(h, message)) || !home_queue_output(h, message, !data)) {
			log_warn("vpid %d: its console sent output that does not fit", h->part->vpid);
			home_refuse(incoming);
			home_end(h);
		}
	} else if (type == PBEAM__CHANNEL_MESSAGE__REMOTE_CONSOLE_TAKEN) {
		home_take_input(h, message->count);
		if (h->readable && !h->input_ended)
			on_input(-1, EV_TIMEOUT, h);
	}
}

void console_home_prepare(struct link_process *process)
{
	const struct sigaction wake = {.sa_handler = wake_writer}; /* without SA_RESTART */
	const int written = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	struct event *end_wanted =
		event_new(process->base, console_positions_wake(process->job->console_positions),
			  EV_READ | EV_PERSIST, on_end_wanted, process);

	console_positions_begin(process->job->console_positions);
	process->home_written = event_new(process->base, written, EV_READ | EV_PERSIST, on_written, process);
	if (written < 0 || !process->home_written || event_add(process->home_written, NULL) < 0 ||
	    !end_wanted || event_add(end_wanted, NULL) < 0 || sigaction(SIGUSR2, &wake, NULL) < 0) {
		log_error("job %s: its console cannot be carried", process->job->entry.uuid);
		_exit(1);
	}
}
