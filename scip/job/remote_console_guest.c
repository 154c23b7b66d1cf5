/* The end of a remote console where the processes are. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "base/log.h"
#include "channel/channel.h"
#include "proto/frame.h"
#include "proto/message.h"
#include "scip/job/links.h"
#include "scip/job/remote_console.h"
#include "scip/job/remote_console_output.h"

enum { STREAMS = 3, LOOK_MS = 20, NAP_MS = 200, LAST_TRIES = 10 };

struct guest {
	const struct job *job;
	struct remote_console *console;
	int keeper;
	pthread_mutex_t giving; /* of given, and ends[0]: what is in the pipe is counted */
	uint64_t given;		/* position in standard input up to which its pipe was given */
	uint64_t taken;		/* ... and read by the program, as reported to home */
	_Atomic bool started;	/* both are known */
	_Atomic bool accepted;	/* by home, on this channel ... */
	_Atomic bool deaf;	/* ... from which nothing comes any more */
	_Atomic bool hung_up;	/* by us */
	uint64_t instance;	/* a random number that distinguishes this end from the one before */
	int confirmations;	/* eventfd: one of the following has changed */
	_Atomic uint64_t written[STREAMS]; /* by home, up to that position */
	_Atomic bool refused[STREAMS];	   /* home's stream is closed */
	struct console_output output[STREAMS];
	bool ended[STREAMS];
	int ends[STREAMS]; /* of the pipes */
	bool flushing;	   /* home is to confirm all that was written here */
	struct remote_console_channel link;
};

/* ---- input ---- */

/* Position in standard input up to which the program has read. */
static uint64_t input_position(struct guest *g)
{
	uint64_t at;
	int n = 0;

	pthread_mutex_lock(&g->giving);
	if (g->ends[0] < 0 || ioctl(g->ends[0], FIONREAD, &n) < 0 || n < 0)
		n = 0;
	at = g->given - (uint64_t)n;
	pthread_mutex_unlock(&g->giving);
	return at;
}

/* Writes into the program's pipe, so that its content and the count agree at any moment. False: this end
 * hangs up before all of it is written. */
static bool give_input(struct guest *g, const uint8_t *bytes, size_t len)
{
	while (len) {
		struct pollfd room = {.fd = g->ends[0], .events = POLLOUT};
		ssize_t n;

		pthread_mutex_lock(&g->giving);
		n = write(g->ends[0], bytes, len);
		if (n > 0)
			g->given += (uint64_t)n;
		pthread_mutex_unlock(&g->giving);
		if (n < 0 && errno != EAGAIN && errno != EINTR)
			return true; /* the program has closed it */
		if (n > 0) {
			bytes += n;
			len -= (size_t)n;
		} else if (poll(&room, 1, NAP_MS) == 0 && atomic_load(&g->hung_up)) {
			return false;
		}
	}
	return true;
}

static bool report_taken(struct guest *g)
{
	uint64_t taken;

	if (g->ends[0] < 0 || !g->started)
		return true;
	taken = input_position(g);
	if (taken <= g->taken)
		return true;
	g->taken = taken;
	return remote_console_send(&g->link, PBEAM__CHANNEL_MESSAGE__REMOTE_CONSOLE_TAKEN, 0, NULL, 0, taken);
}

/* ---- frames from home ---- */

static void on_start(struct guest *g, const Pbeam__RemoteConsole *message)
{
	if (!g->started)
		g->given = g->taken = message->count;
	for (size_t i = 0; i < STREAMS && i < message->n_written; i++)
		atomic_store(&g->written[i], message->written[i]);
	g->started = true;
	atomic_store(&g->accepted, true);
	atomic_store(&g->console->shared->listens, true);
}

static void on_stream_end(struct guest *g, int stream)
{
	if (stream == 0) {
		pthread_mutex_lock(&g->giving);
		if (g->ends[0] >= 0)
			close(steal_fd(&g->ends[0]));
		pthread_mutex_unlock(&g->giving);
	} else {
		atomic_store(&g->refused[stream], true);
	}
}

/* False: no more of this channel can be taken. */
static bool take_from_home(struct guest *g, uint32_t type, const Pbeam__RemoteConsole *message)
{
	const bool known = message->stream >= 0 && message->stream < STREAMS;
	struct winsize size;

	switch (type) {
	case PBEAM__CHANNEL_MESSAGE__REMOTE_CONSOLE_DATA:
		if (g->ends[0] >= 0)
			return give_input(g, message->data.data, message->data.len);
		if (g->job->pty_master >= 0 &&
		    io_write_full(g->job->pty_master, message->data.data, message->data.len) < 0)
			log_debug("no process has the terminal open any more");
		break;
	case PBEAM__CHANNEL_MESSAGE__REMOTE_CONSOLE_START:
		on_start(g, message);
		break;
	case PBEAM__CHANNEL_MESSAGE__REMOTE_CONSOLE_WRITTEN:
		if (known)
			atomic_store(&g->written[message->stream], message->count);
		break;
	case PBEAM__CHANNEL_MESSAGE__REMOTE_CONSOLE_END:
		if (known)
			on_stream_end(g, message->stream);
		break;
	case PBEAM__CHANNEL_MESSAGE__REMOTE_CONSOLE_WINSIZE:
		if (message->data.len == sizeof(size) && g->job->pty_master >= 0)
			ioctl(g->job->pty_master, TIOCSWINSZ, message->data.data);
		break;
	case PBEAM__CHANNEL_MESSAGE__REMOTE_CONSOLE_FLUSHED:
		atomic_store(&g->console->shared->done, (uint32_t)message->count);
		break;
	default:
		break;
	}
	return true;
}

/* A thread: receives until the channel is gone. */
static void *receive_from_home(void *arg)
{
	struct guest *g = arg;
	struct frame frame;
	bool goes_on = true;

	while (goes_on && frame_recv(g->link.channel, &frame, NULL) > 0) {
		Pbeam__RemoteConsole *message =
			(void *)frame_unpack(&frame, &pbeam__remote_console__descriptor, NULL);

		goes_on = message && take_from_home(g, frame.type, message);
		message_free(message);
		frame_free(&frame);
		if (write(g->confirmations, &(uint64_t){1}, sizeof(uint64_t)) < 0)
			log_debug("console: eventfd: %s", strerror(errno));
	}
	atomic_store(&g->deaf, true);
	atomic_store(&g->console->shared->listens, false);
	shutdown(g->link.channel, SHUT_RDWR);
	return NULL;
}

/* ---- output ---- */

/* Where the output that goes as `stream` is read. The terminal's, whichever streams it is, goes as stream 0.
 */
static int output_fd(const struct guest *g, int stream)
{
	return stream == 0 ? g->job->pty_master : g->ends[stream];
}

static bool send_unsent(struct guest *g, int stream)
{
	const char *bytes;
	uint64_t position;
	size_t n;

	while ((n = console_output_next(&g->output[stream], &bytes, &position)) > 0)
		if (!remote_console_send(&g->link, PBEAM__CHANNEL_MESSAGE__REMOTE_CONSOLE_DATA, stream, bytes,
					 n, position))
			return false;
	return true;
}

/* Reads as much as there is room for. *drained: there is no more at the moment. False: the channel is gone.
 */
static bool carry_output(struct guest *g, int stream, bool *drained)
{
	struct console_output *output = &g->output[stream];
	ssize_t n = 0;
	size_t room;

	while ((room = console_output_room(output)) > 0) {
		n = read(output_fd(g, stream), console_output_end(output),
			 room < CONSOLE_PIECE ? room : CONSOLE_PIECE);
		if (n <= 0)
			break;
		console_output_added(output, (size_t)n);
		if (!send_unsent(g, stream))
			return false;
	}
	if (room > 0 && n == 0)
		g->ended[stream] = true;
	*drained = room > 0;
	return true;
}

/* False: home has confirmed bytes that it was not sent. */
static bool take_confirmations(struct guest *g)
{
	uint64_t changes;

	if (read(g->confirmations, &changes, sizeof(changes)) < 0)
		return true; /* none */
	for (int i = 0; i < STREAMS; i++) {
		if (console_output_confirm(&g->output[i], atomic_load(&g->written[i])) < 0)
			return false;
		if (i > 0 && atomic_load(&g->refused[i]) && g->ends[i] >= 0)
			close(steal_fd(&g->ends[i])); /* the program's next write fails, as at home */
	}
	return true;
}

/* ---- flushes ---- */

static bool wants_flush(const struct guest *g)
{
	return atomic_load(&g->console->shared->wanted) != atomic_load(&g->console->shared->done);
}

/* Sends what there is room for, and behind the last of it the flush. False: the channel is gone. */
static bool flush_output(struct guest *g)
{
	const uint32_t wanted = atomic_load(&g->console->shared->wanted);
	bool all = true;

	for (int i = 0; i < STREAMS; i++) {
		bool drained = true;

		if (output_fd(g, i) >= 0 && !carry_output(g, i, &drained))
			return false;
		all &= drained;
	}
	if (!all)
		return true; /* again when home has confirmed something */
	g->flushing = false;
	return report_taken(g) && remote_console_send(&g->link, PBEAM__CHANNEL_MESSAGE__REMOTE_CONSOLE_FLUSH,
						      0, NULL, 0, wanted);
}

/* ---- a channel ---- */

static bool greet_home(struct guest *g)
{
	Pbeam__RemoteConsole hello = PBEAM__REMOTE_CONSOLE__INIT;
	uint64_t written[STREAMS];

	for (int i = 0; i < STREAMS; i++)
		written[i] = g->output[i].base;
	hello.vpid = g->job->entry.root.n;
	hello.fresh = !g->started;
	hello.given = g->given;
	hello.count = input_position(g);
	hello.instance = g->instance;
	hello.written = written;
	hello.n_written = STREAMS;
	g->taken = hello.count;
	return frame_send(g->link.channel, PBEAM__CHANNEL_MESSAGE__REMOTE_CONSOLE_HELLO, &hello.base, NULL, 0,
			  NULL) == 0;
}

/* Nothing is sent before REMOTE_CONSOLE_START: home may take this end for one that is replaced. */
static bool await_start(const struct guest *g)
{
	struct pollfd ready = {.fd = g->confirmations, .events = POLLIN};

	while (!atomic_load(&g->accepted) && !atomic_load(&g->deaf))
		(void)!poll(&ready, 1, LOOK_MS);
	return atomic_load(&g->accepted);
}

/* Sends again what home has not written. */
static bool resume_output(struct guest *g)
{
	for (int i = 0; i < STREAMS; i++) {
		if (console_output_rewind(&g->output[i], atomic_load(&g->written[i])) < 0) {
			log_error("the console on %s confirms output that it was not sent",
				  remote_console_home(g->console->shared));
			return false;
		}
		if (!send_unsent(g, i))
			return false;
	}
	return true;
}

/* Nothing waits for this end any more. */
_Noreturn static void end_guest(struct guest *g, int status)
{
	atomic_store(&g->console->shared->ended, true);
	_exit(status);
}

static void want_flush(struct guest *g)
{
	uint64_t rung;

	(void)!read(g->console->wake, &rung, sizeof(rung)); /* first: a later wish rings again */
	g->flushing = true;
}

/* False: the channel is gone. */
static bool serve_outputs(struct guest *g, const struct pollfd polls[STREAMS])
{
	bool drained;

	for (int i = 0; i < STREAMS; i++) {
		if (polls[i].revents & POLLIN || (polls[i].revents && i > 0)) {
			if (!carry_output(g, i, &drained))
				return false;
		} else if (polls[i].revents) { /* no process has the terminal open just now */
			nanosleep(&(struct timespec){.tv_nsec = NAP_MS / 20 * 1000000}, NULL);
		}
	}
	return true;
}

/* Carries output until the channel is gone. When the keeper has ended, and with it all processes, until home
 * has the last of it; links may ask for flushes even then. */
static void serve_channel(struct guest *g)
{
	bool orphan = false;

	if (!greet_home(g) || !await_start(g) || !resume_output(g))
		return;
	g->flushing = wants_flush(g);
	while (take_confirmations(g) && (!g->flushing || flush_output(g)) && report_taken(g)) {
		struct pollfd polls[STREAMS + 4] = {
			{.fd = output_fd(g, 0), .events = POLLIN},
			{.fd = g->ended[1] ? -1 : output_fd(g, 1), .events = POLLIN},
			{.fd = g->ended[2] ? -1 : output_fd(g, 2), .events = POLLIN},
			{.fd = g->link.channel, .events = 0},
			{.fd = g->confirmations, .events = POLLIN},
			{.fd = g->console->wake, .events = POLLIN},
			{.fd = orphan ? -1 : g->keeper, .events = POLLIN},
		};

		for (int i = 0; i < STREAMS; i++)
			if (console_output_room(&g->output[i]) == 0)
				polls[i].fd = -1;
		if (orphan && !wants_flush(g))
			end_guest(g, 0);
		if (poll(polls, STREAMS + 4, orphan || g->ends[0] >= 0 ? LOOK_MS : -1) < 0)
			continue;
		if (polls[STREAMS].revents || !serve_outputs(g, polls))
			return;
		if (polls[STREAMS + 2].revents)
			want_flush(g);
		if (polls[STREAMS + 3].revents) {
			orphan = true;
			atomic_fetch_add(&g->console->shared->wanted, 1);
			want_flush(g);
		}
	}
}

/* ---- the process ---- */

/* Something was written that home does not have. */
static bool has_unconfirmed(const struct guest *g)
{
	for (int i = 0; i < STREAMS; i++) {
		int n = 0;

		if (g->output[i].len ||
		    (output_fd(g, i) >= 0 && ioctl(output_fd(g, i), FIONREAD, &n) == 0 && n > 0))
			return true;
	}
	return false;
}

static struct guest *make_guest(const struct job *job, int keeper, uint8_t cookie[16], struct err *err)
{
	struct guest *g = calloc(1, sizeof(*g));

	if (!g) {
		err_code(err, -ENOMEM, "make the console");
		return NULL;
	}
	*g = (struct guest){.job = job,
			    .console = job->remote_console,
			    .keeper = keeper,
			    .giving = PTHREAD_MUTEX_INITIALIZER,
			    .link.lock = PTHREAD_MUTEX_INITIALIZER,
			    .confirmations = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
	memcpy(g->ends, job->console_ends, sizeof(g->ends));
	for (int i = 0; i < STREAMS; i++)
		if (g->ends[i] >= 0)
			fcntl(g->ends[i], F_SETFL, O_NONBLOCK);
	if (g->confirmations < 0 ||
	    getrandom(&g->instance, sizeof(g->instance), 0) != (ssize_t)sizeof(g->instance)) {
		err_sys(err, "make the console");
		return NULL;
	}
	return job_cookie(job, cookie, err) < 0 ? NULL : g;
}

static void call_home(struct guest *g, const uint8_t cookie[16])
{
	const char *home = remote_console_home(g->console->shared);
	struct err err = ERR_INIT;
	pthread_t thread;

	atomic_store(&g->deaf, false);
	atomic_store(&g->accepted, false);
	atomic_store(&g->hung_up, false);
	g->link.channel = channel_open(home, PBEAM__CHANNEL_KIND__CHANNEL_SESSION, cookie, &err);
	if (g->link.channel < 0) {
		log_info("the console on %s cannot be reached: %s", home, err.text);
		return;
	}
	if (pthread_create(&thread, NULL, receive_from_home, g) == 0) {
		serve_channel(g);
		atomic_store(&g->hung_up, true);
		shutdown(g->link.channel, SHUT_RDWR);
		pthread_join(thread, NULL);
	}
	close(g->link.channel);
}

void remote_console_guest_main(const struct job *job, int keeper)
{
	struct err err = ERR_INIT;
	uint8_t cookie[16];
	struct guest *g = make_guest(job, keeper, cookie, &err);

	atomic_store(&job->remote_console->shared->pid, getpid());
	if (!g) {
		log_error("%s", err.text);
		atomic_store(&job->remote_console->shared->ended, true);
		_exit(1);
	}
	for (int tries = 0; tries < LAST_TRIES; tries++) {
		bool orphan;

		call_home(g, cookie);
		do {
			orphan = recv(keeper, &(char){0}, 1, MSG_DONTWAIT) == 0;
			if (orphan && !has_unconfirmed(g))
				end_guest(g, 0);
			tries = orphan ? tries : 0;
			nanosleep(&(struct timespec){.tv_nsec = NAP_MS * 1000000}, NULL);
		} while (!orphan && atomic_load(&g->console->shared->departing) && !wants_flush(g));
	}
	end_guest(g, 1);
}
