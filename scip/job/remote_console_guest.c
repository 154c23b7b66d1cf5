#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
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
#include "scip/job/line.h"
#include "scip/job/remote_console.h"
#include "scip/job/terminal.h"

enum { PIECE = 32768, LOOK_MS = 20, NAP_MS = 200, FLUSH_MS = 5000, NAP_NS = 1000000, LAST_TRIES = 10 };

/* What a guest keeper has of its console beside job->console. */
struct remote_console {
	int wake; /* eventfd: a flush is wanted */
	struct remote_console_shared *shared;
};

/* ---- in the keeper ---- */

static enum _Pbeam__ConsoleStream__Kind kind_of(const Pbeam__MigrateBegin *begin, int stream)
{
	for (size_t i = 0; i < begin->job->n_console; i++)
		if (begin->job->console[i]->index == stream)
			return begin->job->console[i]->kind;
	return PBEAM__CONSOLE_STREAM__KIND__CLOSED;
}

static int make_pipe(struct job *job, int stream, struct err *err)
{
	int ends[2];

	if (pipe2(ends, O_CLOEXEC) < 0)
		return err_sys(err, "make a pipe");
	job->console[stream] = ends[stream ? 1 : 0];
	job->console_ends[stream] = ends[stream ? 0 : 1];
	return 0;
}

static int make_stream(struct job *job, int stream, enum _Pbeam__ConsoleStream__Kind kind, int slave,
		       struct err *err)
{
	switch (kind) {
	case PBEAM__CONSOLE_STREAM__KIND__TTY:
		job->console[stream] = fcntl(slave, F_DUPFD_CLOEXEC, 3);
		break;
	case PBEAM__CONSOLE_STREAM__KIND__PIPE:
	case PBEAM__CONSOLE_STREAM__KIND__SOCKET:
		return make_pipe(job, stream, err);
	case PBEAM__CONSOLE_STREAM__KIND__NULLDEV:
		job->console[stream] = open("/dev/null", O_RDWR | O_CLOEXEC);
		break;
	case PBEAM__CONSOLE_STREAM__KIND__FILE: /* is opened by its path */
	case PBEAM__CONSOLE_STREAM__KIND__CLOSED:
	case _PBEAM__CONSOLE_STREAM__KIND_IS_INT_SIZE:
		return 0;
	}
	return job->console[stream] < 0 ? err_sys(err, "make standard stream %d", stream) : 0;
}

int remote_console_make_streams(struct job *job, const Pbeam__MigrateBegin *begin, struct err *err)
{
	auto_close int slave = -1;
	bool terminal = false;
	int r = 0;

	job->remote_console = calloc(1, sizeof(*job->remote_console));
	if (!job->remote_console)
		return err_code(err, -ENOMEM, "make the console");
	*job->remote_console = (struct remote_console){.wake = -1};
	for (int i = 0; i < 3; i++)
		terminal |= kind_of(begin, i) == PBEAM__CONSOLE_STREAM__KIND__TTY;
	if (terminal)
		r = terminal_make_pty(-1, &job->pty_master, &slave, err);
	for (int i = 0; i < 3 && r == 0; i++)
		r = make_stream(job, i, kind_of(begin, i), slave, err);
	return r;
}

static void set_home(struct remote_console_shared *shared, const char *home)
{
	uint32_t turn = atomic_load(&shared->turn) + 1;

	snprintf(shared->homes[turn % 2], sizeof(shared->homes[0]), "%s", home);
	atomic_store(&shared->turn, turn);
}

static const char *home_name(const struct remote_console_shared *shared)
{
	return shared->homes[atomic_load(&shared->turn) % 2];
}

void remote_console_set_home(struct job *job, const char *home)
{
	char *own = job->home && strcmp(job->home, home) != 0 ? strdup(home) : NULL;

	if (!own)
		return;
	log_info("job %s: its console is on %s now, not on %s", job->entry.uuid, own, job->home);
	job->home = own; /* the older one is the migration's */
	if (job->remote_console && job->remote_console->shared)
		set_home(job->remote_console->shared, own);
}

int remote_console_start(struct job *job, struct err *err)
{
	struct remote_console *console = job->remote_console;
	int r;

	if (!console || console->shared)
		return 0;
	if (job->pty_master < 0 && job->console_ends[0] < 0 && job->console_ends[1] < 0 &&
	    job->console_ends[2] < 0)
		return 0;
	console->shared = mmap(NULL, sizeof(*console->shared), PROT_READ | PROT_WRITE,
			       MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	console->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (console->shared == MAP_FAILED || console->wake < 0) {
		console->shared = NULL;
		return err_sys(err, "make the console");
	}
	set_home(console->shared, job->home);
	r = lines_start_console(job, err);
	for (int i = 0; i < 3; i++) /* else standard input would never end */
		if (job->console_ends[i] >= 0)
			close(steal_fd(&job->console_ends[i]));
	return r;
}

void remote_console_stop(struct job *job)
{
	struct remote_console *console = job->remote_console;

	lines_drop_consoles(job);
	job->remote_console = NULL;
	if (!console)
		return;
	if (console->shared)
		munmap(console->shared, sizeof(*console->shared));
	if (console->wake >= 0)
		close(console->wake);
	free(console);
}

/* Home has it, or will as soon as somebody reads there. */
static bool is_underway(const struct remote_console_shared *shared)
{
	pid_t pid = atomic_load(&shared->pid);

	return atomic_load(&shared->listens) && pid > 0 && kill(pid, 0) == 0;
}

int remote_console_flush(const struct job *job, bool last, struct err *err)
{
	struct remote_console_shared *shared = job->remote_console ? job->remote_console->shared : NULL;
	uint64_t end = io_now_ns(CLOCK_MONOTONIC) + FLUSH_MS * 1000000ull;
	uint32_t wanted;

	if (!shared)
		return 0;
	wanted = atomic_fetch_add(&shared->wanted, 1) + 1;
	if (write(job->remote_console->wake, &(uint64_t){1}, sizeof(uint64_t)) < 0)
		return err_sys(err, "flush the console");
	while ((int32_t)(atomic_load(&shared->done) - wanted) < 0 && !atomic_load(&shared->ended)) {
		if (io_now_ns(CLOCK_MONOTONIC) >= end && !(last && is_underway(shared)))
			return err_set(
				err, -ETIMEDOUT,
				"the console on %s does not take what was written to it; read it there "
				"and try again",
				job->home);
		nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
	}
	return 0;
}

void remote_console_set_departing(const struct job *job, bool leaving)
{
	if (job->remote_console && job->remote_console->shared)
		atomic_store(&job->remote_console->shared->leaving, leaving);
}

/* ---- the process ---- */

struct guest {
	const struct job *job;
	struct remote_console *console;
	int keeper;
	pthread_mutex_t giving; /* of given, and ends[0]: what is in the pipe is counted */
	uint64_t given;		/* position in standard input up to which its pipe was given */
	uint64_t taken;		/* ... and read by the program, as home was told */
	_Atomic bool started;	/* both are known */
	uint32_t flush;		/* asked of home */
	_Atomic bool accepted;	/* by home, on this channel ... */
	_Atomic bool deaf;	/* ... from which nothing comes any more */
	_Atomic bool hung_up;	/* by us */
	bool ended[3];
	int ends[3]; /* of the pipes */
	struct remote_console_channel line;
};

static int output_fd(const struct guest *g, int stream)
{
	if (stream == 0)
		return -1;
	return g->ends[stream];
}

/* Everything that is there, or with `all` false one piece. False: the channel is gone. */
static bool carry(struct guest *g, int stream, int fd, bool all)
{
	char bytes[PIECE];
	ssize_t n;

	do {
		n = read(fd, bytes, sizeof(bytes));
		if (n == 0)
			g->ended[stream] = true;
		if (n > 0 && !remote_console_send(&g->line, PBEAM__CHANNEL_MESSAGE__REMOTE_CONSOLE_DATA,
						  stream, bytes, (size_t)n, 0))
			return false;
	} while (all && n > 0);
	return true;
}

/* Position in standard input up to which the program has read. */
static uint64_t position(struct guest *g)
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

/* Into the program's pipe: what is in it and what was counted are one at any moment. False: there is no time
 * left for all of it. */
static bool give(struct guest *g, const uint8_t *bytes, size_t len)
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
			return true; /* nobody reads it any more */
		if (n > 0) {
			bytes += n;
			len -= (size_t)n;
		} else if (poll(&room, 1, NAP_MS) == 0 && atomic_load(&g->hung_up)) {
			return false;
		}
	}
	return true;
}

static bool tell_taken(struct guest *g)
{
	uint64_t taken;

	if (g->ends[0] < 0 || !g->started)
		return true;
	taken = position(g);
	if (taken <= g->taken)
		return true;
	g->taken = taken;
	return remote_console_send(&g->line, PBEAM__CHANNEL_MESSAGE__REMOTE_CONSOLE_TAKEN, 0, NULL, 0, taken);
}

static bool flush(struct guest *g)
{
	uint32_t wanted;
	uint64_t rung;

	(void)!read(g->console->wake, &rung, sizeof(rung)); /* first: who asks from now on rings again */
	wanted = atomic_load(&g->console->shared->wanted);
	if (g->job->pty_master >= 0 && !carry(g, 1, g->job->pty_master, true))
		return false;
	for (int i = 1; i < 3; i++)
		if (output_fd(g, i) >= 0 && !carry(g, i, output_fd(g, i), true))
			return false;
	return tell_taken(g) && remote_console_send(&g->line, PBEAM__CHANNEL_MESSAGE__REMOTE_CONSOLE_FLUSH, 0,
						    NULL, 0, wanted);
}

/* False: no more of this channel can be taken. */
static bool take_frame(struct guest *g, uint32_t type, const Pbeam__RemoteConsole *message)
{
	struct winsize size;

	switch (type) {
	case PBEAM__CHANNEL_MESSAGE__REMOTE_CONSOLE_DATA:
		if (g->ends[0] >= 0)
			return give(g, message->data.data, message->data.len);
		if (g->job->pty_master >= 0 &&
		    io_write_full(g->job->pty_master, message->data.data, message->data.len) < 0)
			log_debug("nobody reads the terminal any more");
		break;
	case PBEAM__CHANNEL_MESSAGE__REMOTE_CONSOLE_START:
		if (!g->started)
			g->given = g->taken = message->count;
		g->started = true;
		atomic_store(&g->accepted, true);
		atomic_store(&g->console->shared->listens, true);
		break;
	case PBEAM__CHANNEL_MESSAGE__REMOTE_CONSOLE_END:
		pthread_mutex_lock(&g->giving);
		if (message->stream >= 0 && message->stream < 3 && g->ends[message->stream] >= 0)
			close(steal_fd(&g->ends[message->stream]));
		pthread_mutex_unlock(&g->giving);
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

/* What comes from home; ends with the channel. */
static void *listen_home(void *arg)
{
	struct guest *g = arg;
	struct frame frame;
	bool goes_on = true;

	while (goes_on && frame_recv(g->line.channel, &frame, NULL) > 0) {
		Pbeam__RemoteConsole *message =
			(void *)frame_unpack(&frame, &pbeam__remote_console__descriptor, NULL);

		if (message)
			goes_on = take_frame(g, frame.type, message);
		message_free(message);
		frame_free(&frame);
	}
	atomic_store(&g->deaf, true);
	atomic_store(&g->console->shared->listens, false);
	shutdown(g->line.channel, SHUT_RDWR);
	return NULL;
}

static bool say_hello(struct guest *g)
{
	Pbeam__RemoteConsole hello = PBEAM__REMOTE_CONSOLE__INIT;

	hello.vpid = g->job->entry.root.n;
	hello.fresh = !g->started;
	hello.given = g->given;
	hello.count = position(g);
	g->taken = hello.count;
	return frame_send(g->line.channel, PBEAM__CHANNEL_MESSAGE__REMOTE_CONSOLE_HELLO, &hello.base, NULL, 0,
			  NULL) == 0;
}

/* Nothing is sent before home has said that it listens: it may take us for one that lags behind. */
static bool await_start(const struct guest *g)
{
	const struct timespec nap = {.tv_nsec = NAP_NS};

	while (!atomic_load(&g->accepted) && !atomic_load(&g->deaf))
		nanosleep(&nap, NULL);
	return atomic_load(&g->accepted);
}

static bool wants_flush(const struct guest *g)
{
	return atomic_load(&g->console->shared->wanted) != atomic_load(&g->console->shared->done);
}

/* Nothing waits for it any more. */
_Noreturn static void end(struct guest *g, int status)
{
	atomic_store(&g->console->shared->ended, true);
	_exit(status);
}

/* The keeper has left, and with it all processes; lines may wait for their last words still, or begin to. */
_Noreturn static void leave(struct guest *g)
{
	const struct timespec nap = {.tv_nsec = NAP_NS};
	uint32_t asked = atomic_fetch_add(&g->console->shared->wanted, 1) + 1;
	bool alive = flush(g);

	while (alive && wants_flush(g) && !atomic_load(&g->deaf)) {
		uint32_t wanted = atomic_load(&g->console->shared->wanted);

		if (wanted != asked)
			alive = flush(g);
		asked = wanted;
		nanosleep(&nap, NULL);
	}
	end(g, 0);
}

/* Output, until the channel is gone. */
static void talk(struct guest *g)
{
	if (!say_hello(g) || !await_start(g) || (wants_flush(g) && !flush(g)))
		return;
	for (;;) {
		struct pollfd polls[6] = {
			{.fd = g->keeper, .events = POLLIN},
			{.fd = g->console->wake, .events = POLLIN},
			{.fd = g->job->pty_master, .events = POLLIN},
			{.fd = g->ended[1] ? -1 : output_fd(g, 1), .events = POLLIN},
			{.fd = g->ended[2] ? -1 : output_fd(g, 2), .events = POLLIN},
			{.fd = g->line.channel, .events = 0},
		};
		bool alive = true;

		if (poll(polls, 6, g->ends[0] >= 0 ? LOOK_MS : -1) < 0)
			continue;
		if (polls[0].revents)
			leave(g);
		if (polls[5].revents)
			return;
		if (polls[2].revents & POLLIN)
			alive = carry(g, 1, g->job->pty_master, false);
		else if (polls[2].revents) /* nobody has the other side just now */
			nanosleep(&(struct timespec){.tv_nsec = 10 * NAP_NS}, NULL);
		for (int i = 1; i < 3 && alive; i++)
			if (polls[2 + i].revents)
				alive = carry(g, i, output_fd(g, i), false);
		if (alive && polls[1].revents)
			alive = flush(g);
		if (!alive || !tell_taken(g))
			return;
	}
}

/* Something was written that home does not have. */
static bool has_words(const struct guest *g)
{
	const int fds[] = {g->job->pty_master, output_fd(g, 1), output_fd(g, 2)};
	int n = 0;

	for (size_t i = 0; i < sizeof(fds) / sizeof(fds[0]) && n <= 0; i++)
		if (fds[i] >= 0 && ioctl(fds[i], FIONREAD, &n) < 0)
			n = 0;
	return n > 0;
}

void remote_console_guest_main(const struct job *job, int keeper)
{
	struct guest g = {
		.job = job,
		.console = job->remote_console,
		.keeper = keeper,
		.giving = PTHREAD_MUTEX_INITIALIZER,
		.line.lock = PTHREAD_MUTEX_INITIALIZER,
	};
	struct err err = ERR_INIT;
	const char *home;
	uint8_t cookie[16];

	memcpy(g.ends, job->console_ends, sizeof(g.ends));
	atomic_store(&job->remote_console->shared->pid, getpid());
	if (line_cookie(job, cookie, &err) < 0)
		end(&g, 1);
	for (int i = 0; i < 3; i++)
		if (g.ends[i] >= 0)
			fcntl(g.ends[i], F_SETFL, O_NONBLOCK);
	for (int tries = 0; tries < LAST_TRIES; tries++) {
		bool left;
		pthread_t thread;

		atomic_store(&g.deaf, false);
		atomic_store(&g.accepted, false);
		atomic_store(&g.hung_up, false);
		home = home_name(g.console->shared);
		g.line.channel = channel_open(home, PBEAM__CHANNEL_KIND__CHANNEL_SESSION, cookie, &err);
		if (g.line.channel >= 0 && pthread_create(&thread, NULL, listen_home, &g) == 0) {
			talk(&g);
			atomic_store(&g.hung_up, true);
			shutdown(g.line.channel, SHUT_RDWR);
			pthread_join(thread, NULL);
		}
		if (g.line.channel >= 0)
			close(g.line.channel);
		else
			log_info("the console on %s cannot be reached: %s", home, err.text);
		do {
			left = recv(keeper, &(char){0}, 1, MSG_DONTWAIT) == 0;
			if (left && !has_words(&g))
				end(&g, 0);
			tries = left ? tries : 0;
			nanosleep(&(struct timespec){.tv_nsec = NAP_MS * 1000000}, NULL);
		} while (!left && atomic_load(&g.console->shared->leaving) && !wants_flush(&g));
	}
	end(&g, 1);
}
