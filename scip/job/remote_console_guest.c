/* The end of a remote console where the processes are: in the process that carries the job's links. */
#include <errno.h>
#include <event2/buffer.h>
#include <event2/event.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/random.h>
#include <termios.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "scip/job/link_peer.h"
#include "scip/job/link_process.h"
#include "scip/job/remote_console.h"
#include "scip/job/remote_console_output.h"

enum { STREAMS = 3, LOOK_MS = 20, NAP_MS = 200, LAST_TRIES = 10 };

struct console_guest {
	struct link_process *process;
	struct remote_console *console;
	struct remote_console_shared *shared; /* of that */
	struct link_peer *home;		      /* that was greeted; NULL none */
	bool accepted;			      /* by home, on this connection */
	bool orphan, over;		      /* the keeper has ended; so has this */
	int tries;
	struct event *retry, *tick, *wake;

	struct evbuffer *input; /* came from home, and is not given yet */
	uint64_t taken;		/* position up to which the program has read, as reported to home */
	bool input_ended;	/* behind that */
	struct event *writable; /* of what the input is given to */

	int ends[STREAMS]; /* of the pipes */
	struct event *readable[STREAMS];
	bool ended[STREAMS];
	bool no_slave; /* no process has the terminal open just now */
	bool flushing; /* home is to confirm all that was written here */
};

static void console_send(struct console_guest *g, uint32_t type, int stream, const void *data, size_t len,
			 uint64_t count)
{
	Pbeam__RemoteConsole message = PBEAM__REMOTE_CONSOLE__INIT;

	message.stream = stream;
	message.data.data = (uint8_t *)(uintptr_t)data;
	message.data.len = len;
	message.count = count;
	if (g->home)
		link_peer_send(g->home, type, &message.base);
}

static void console_update(struct console_guest *g);

/* ---- input ---- */

static int console_input_fd(const struct console_guest *g)
{
	return g->process->job->console_ends[0] >= 0 ? g->ends[0] : g->process->job->pty_master;
}

/* Position in standard input up to which the program has read; of a terminal, up to which it was given. */
static uint64_t input_position(const struct console_guest *g)
{
	int n = 0;

	if (g->ends[0] < 0 || ioctl(g->ends[0], FIONREAD, &n) < 0 || n < 0)
		n = 0;
	return g->shared->given - (uint64_t)n;
}

/* In the keeper too: the next process would open it again. */
static void console_close(struct console_guest *g, int stream)
{
	Pbeam__LinkNews news = PBEAM__LINK_NEWS__INIT;

	if (g->ends[stream] < 0)
		return;
	close(steal_fd(&g->ends[stream]));
	news.value = stream;
	link_process_tell(g->process, PBEAM__LINK_NEWS_TYPE__LINK_NEWS_STREAM_CLOSED, &news);
}

static void console_close_input(struct console_guest *g)
{
	event_del(g->writable);
	console_close(g, 0);
}

static void console_give_input(struct console_guest *g)
{
	while (evbuffer_get_length(g->input)) {
		int n = evbuffer_write(g->input, console_input_fd(g));

		if (n > 0) {
			g->shared->given += (uint64_t)n;
			continue;
		}
		if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
			event_add(g->writable, NULL);
			return;
		}
		/* The program has closed it, or has gone: it has not read this. */
		evbuffer_drain(g->input, evbuffer_get_length(g->input));
	}
	if (g->input_ended)
		console_close_input(g);
}

static void on_console_writable(evutil_socket_t fd, short events, void *arg)
{
	struct console_guest *g = arg;

	console_give_input(g);
	console_update(g);
}

static void console_report_taken(struct console_guest *g)
{
	const uint64_t taken = g->shared->started ? input_position(g) : 0;

	if (!g->shared->started || taken <= g->taken)
		return;
	g->taken = taken;
	console_send(g, PBEAM__CHANNEL_MESSAGE__REMOTE_CONSOLE_TAKEN, 0, NULL, 0, taken);
}

/* ---- output ---- */

/* Where the output that goes as `stream` is read. The terminal's, whichever streams it is, goes as stream 0.
 */
static int console_output_fd(const struct console_guest *g, int stream)
{
	return stream == 0 ? g->process->job->pty_master : g->ends[stream];
}

static void console_send_unsent(struct console_guest *g, int stream)
{
	const char *bytes;
	uint64_t position;
	size_t n;

	while ((n = console_output_next(&g->shared->output[stream], &bytes, &position)) > 0)
		console_send(g, PBEAM__CHANNEL_MESSAGE__REMOTE_CONSOLE_DATA, stream, bytes, n, position);
}

/* Reads as much as there is room for. True: there is no more at the moment. */
static bool console_carry_output(struct console_guest *g, int stream)
{
	struct console_output *output = &g->shared->output[stream];
	ssize_t n = 0;
	size_t room;

	while ((room = console_output_room(output)) > 0) {
		n = read(console_output_fd(g, stream), console_output_end(output),
			 room < CONSOLE_PIECE ? room : CONSOLE_PIECE);
		if (n <= 0)
			break;
		console_output_added(output, (size_t)n);
		console_send_unsent(g, stream);
	}
	if (room > 0 && n == 0)
		g->ended[stream] = true;
	if (stream == 0)
		g->no_slave = room > 0 && n < 0 && errno == EIO;
	return room > 0;
}

static void on_console_readable(evutil_socket_t fd, short events, void *arg)
{
	struct console_guest *g = arg;

	for (int i = 0; i < STREAMS; i++)
		if (g->accepted && console_output_fd(g, i) == fd)
			console_carry_output(g, i);
	console_update(g);
}

/* ---- flushes ---- */

static bool console_wants_flush(const struct console_guest *g)
{
	return atomic_load(&g->shared->wanted) != atomic_load(&g->shared->done);
}

/* Sends what there is room for, and behind the last of it the flush; else again when home has confirmed
 * something. */
static void console_flush(struct console_guest *g)
{
	const uint32_t wanted = atomic_load(&g->shared->wanted);
	bool all = true;

	for (int i = 0; i < STREAMS; i++)
		if (console_output_fd(g, i) >= 0)
			all &= console_carry_output(g, i);
	if (!all)
		return;
	g->flushing = false;
	console_report_taken(g);
	console_send(g, PBEAM__CHANNEL_MESSAGE__REMOTE_CONSOLE_FLUSH, 0, NULL, 0, wanted);
}

static void on_flush_wanted(evutil_socket_t fd, short events, void *arg)
{
	struct console_guest *g = arg;
	uint64_t rung;

	(void)!read(fd, &rung, sizeof(rung)); /* first: a later wish rings again */
	g->flushing = true;
	console_update(g);
}

/* ---- the connection ---- */

/* Something was written that home does not have. */
static bool console_has_unconfirmed(const struct console_guest *g)
{
	for (int i = 0; i < STREAMS; i++) {
		int n = 0;

		if (g->shared->output[i].len || (console_output_fd(g, i) >= 0 &&
						 ioctl(console_output_fd(g, i), FIONREAD, &n) == 0 && n > 0))
			return true;
	}
	return false;
}

static void console_end(struct console_guest *g)
{
	g->over = true;
	g->process->console_open = false;
	atomic_store(&g->shared->ended, true);
	link_process_check_end(g->process);
}

static void console_greet_home(struct console_guest *g)
{
	Pbeam__RemoteConsole hello = PBEAM__REMOTE_CONSOLE__INIT;
	uint64_t written[STREAMS];

	for (int i = 0; i < STREAMS; i++)
		written[i] = g->shared->output[i].base;
	hello.vpid = g->process->job->entry.root.n;
	hello.fresh = !g->shared->started;
	hello.given = g->shared->given + evbuffer_get_length(g->input);
	hello.count = input_position(g);
	hello.instance = g->shared->instance;
	hello.written = written;
	hello.n_written = STREAMS;
	g->taken = hello.count;
	link_peer_send(g->home, PBEAM__CHANNEL_MESSAGE__REMOTE_CONSOLE_HELLO, &hello.base);
}

/* Does what has become possible, and waits for the rest. */
static void console_update(struct console_guest *g)
{
	if (g->over)
		return;
	if (g->accepted) {
		if (g->flushing)
			console_flush(g);
		console_report_taken(g);
		if (g->orphan && !console_wants_flush(g)) {
			console_end(g);
			return;
		}
	}
	for (int i = 0; i < STREAMS; i++) {
		const bool reads = g->accepted && g->readable[i] && console_output_fd(g, i) >= 0 &&
				   !g->ended[i] && !(i == 0 && g->no_slave) &&
				   console_output_room(&g->shared->output[i]) > 0;

		if (g->readable[i] && reads)
			event_add(g->readable[i], NULL);
		else if (g->readable[i])
			event_del(g->readable[i]);
	}
	if (g->accepted && (g->ends[0] >= 0 || g->no_slave) && !event_pending(g->tick, EV_TIMEOUT, NULL))
		link_process_timer_start(g->tick, LOOK_MS);
}

static void on_console_tick(int fd, short events, void *arg)
{
	struct console_guest *g = arg;

	g->no_slave = false;
	console_update(g);
}

static void console_lose(struct console_guest *g)
{
	g->home = NULL;
	g->accepted = false;
	atomic_store(&g->shared->listens, false);
	if (g->over)
		return;
	console_update(g);
	if (g->orphan && !console_has_unconfirmed(g))
		console_end(g);
	else
		link_process_timer_start(g->retry, NAP_MS);
}

/* Home is not called while the processes are about to leave: the next host calls it. */
static void console_call(struct console_guest *g)
{
	if (g->over || g->accepted)
		return;
	if (g->orphan && (!console_has_unconfirmed(g) || ++g->tries >= LAST_TRIES)) {
		console_end(g);
		return;
	}
	link_process_timer_start(g->retry, NAP_MS);
	if (!g->orphan && atomic_load(&g->shared->departing) && !console_wants_flush(g))
		return;
	g->home = link_peer_want(g->process, remote_console_home(g->shared));
	if (g->home && link_peer_is_connected(g->home))
		console_guest_connected(g->process, g->home);
}

static void on_console_retry(int fd, short events, void *arg)
{
	console_call(arg);
}

void console_guest_connected(struct link_process *process, struct link_peer *peer)
{
	struct console_guest *g = process->console;

	if (!g || g->over || g->home != peer || g->accepted)
		return;
	event_del(g->retry);
	console_greet_home(g);
}

void console_guest_unconnected(struct link_process *process, const struct link_peer *peer)
{
	struct console_guest *g = process->console;

	if (g && g->home == peer)
		console_lose(g);
}

/* Sends again what home has not written. */
static void console_take_start(struct console_guest *g, const Pbeam__RemoteConsole *message)
{
	struct link_peer *home = g->home;

	if (!g->shared->started)
		g->shared->given = g->taken = message->count;
	g->shared->started = g->accepted = true;
	g->tries = 0;
	atomic_store(&g->shared->listens, true);
	for (int i = 0; i < STREAMS; i++) {
		const size_t n = message->n_written;

		if (console_output_rewind(&g->shared->output[i],
					  (size_t)i < n ? message->written[i] : g->shared->output[i].base) <
		    0) {
			log_error("the console on %s confirms output that it was not sent", home->host);
			link_peer_drop(home);
			return;
		}
		console_send_unsent(g, i);
	}
	g->flushing = console_wants_flush(g);
}

static void console_take_end(struct console_guest *g, int stream)
{
	if (stream == 0) {
		g->input_ended = true;
		console_give_input(g);
	} else if (g->ends[stream] >= 0) {
		event_free(g->readable[stream]);
		g->readable[stream] = NULL;
		console_close(g, stream); /* the program's next write fails, as at home */
	}
}

static void console_take_frame(struct console_guest *g, uint32_t type, const Pbeam__RemoteConsole *message)
{
	const bool known = message->stream >= 0 && message->stream < STREAMS;
	struct winsize size;

	switch (type) {
	case PBEAM__CHANNEL_MESSAGE__REMOTE_CONSOLE_START:
		console_take_start(g, message);
		break;
	case PBEAM__CHANNEL_MESSAGE__REMOTE_CONSOLE_REFUSED:
		console_lose(g);
		break;
	case PBEAM__CHANNEL_MESSAGE__REMOTE_CONSOLE_DATA:
		if (console_input_fd(g) < 0 ||
		    evbuffer_add(g->input, message->data.data, message->data.len) < 0)
			break;
		console_give_input(g);
		break;
	case PBEAM__CHANNEL_MESSAGE__REMOTE_CONSOLE_WRITTEN:
		if (known && console_output_confirm(&g->shared->output[message->stream], message->count) < 0)
			link_peer_drop(g->home);
		break;
	case PBEAM__CHANNEL_MESSAGE__REMOTE_CONSOLE_END:
		if (known)
			console_take_end(g, message->stream);
		break;
	case PBEAM__CHANNEL_MESSAGE__REMOTE_CONSOLE_WINSIZE:
		if (message->data.len == sizeof(size) && g->process->job->pty_master >= 0)
			ioctl(g->process->job->pty_master, TIOCSWINSZ, message->data.data);
		break;
	case PBEAM__CHANNEL_MESSAGE__REMOTE_CONSOLE_FLUSHED:
		atomic_store(&g->shared->done, (uint32_t)message->count);
		break;
	default:
		break;
	}
}

void console_guest_frame(struct link_process *process, uint32_t type, const Pbeam__RemoteConsole *message)
{
	struct console_guest *g = process->console;

	if (!g || g->over || !g->home)
		return;
	if (g->accepted || type == PBEAM__CHANNEL_MESSAGE__REMOTE_CONSOLE_START ||
	    type == PBEAM__CHANNEL_MESSAGE__REMOTE_CONSOLE_REFUSED)
		console_take_frame(g, type, message);
	console_update(g);
}

/* ---- beginning and end ---- */

static struct event *console_watch(struct console_guest *g, int fd, short events,
				   void (*ready)(evutil_socket_t, short, void *))
{
	return event_new(g->process->base, fd, events, ready, g);
}

static bool console_open(struct console_guest *g)
{
	memcpy(g->ends, g->process->job->console_ends, sizeof(g->ends));
	g->input = evbuffer_new();
	g->retry = link_process_timer(g->process, on_console_retry, g);
	g->tick = link_process_timer(g->process, on_console_tick, g);
	g->wake = console_watch(g, g->console->wake, EV_READ | EV_PERSIST, on_flush_wanted);
	g->writable = console_watch(g, console_input_fd(g), EV_WRITE, on_console_writable);
	for (int i = 0; i < STREAMS; i++) {
		if (g->ends[i] >= 0)
			fcntl(g->ends[i], F_SETFL, O_NONBLOCK);
		if (console_output_fd(g, i) < 0)
			continue;
		g->readable[i] =
			console_watch(g, console_output_fd(g, i), EV_READ | EV_PERSIST, on_console_readable);
		if (!g->readable[i])
			return false;
	}
	if (!g->shared->instance && getrandom(&g->shared->instance, sizeof(g->shared->instance), 0) < 0)
		return false;
	return g->input && g->writable && g->wake && event_add(g->wake, NULL) == 0;
}

void console_guest_start(struct link_process *process)
{
	struct job *job = process->job;
	struct console_guest *g;

	if (process->console || !job->remote_console || !job->remote_console->shared)
		return;
	g = calloc(1, sizeof(*g));
	if (g) {
		g->process = process;
		g->console = job->remote_console;
		g->shared = g->console->shared;
	}
	if (!g || !console_open(g)) {
		log_error("job %s: its console cannot be carried: no memory", job->entry.uuid);
		atomic_store(&job->remote_console->shared->ended, true);
		return;
	}
	process->console = g;
	process->console_open = true;
	atomic_store(&g->shared->pid, getpid());
	console_call(g);
}

/* Carries the last of the output home; processes whose end is reported may want flushes even now. */
void console_guest_orphan(struct link_process *process)
{
	struct console_guest *g = process->console;

	if (!process->console_open)
		return;
	g->orphan = true;
	atomic_fetch_add(&g->shared->wanted, 1);
	g->flushing = true;
	if (!g->accepted && !console_has_unconfirmed(g))
		console_end(g);
	else
		console_update(g);
}
