/*
 * The console's loop.
 *
 * Without a pty the streams are the program's own, and only signals are relayed. With one there are three
 * cases:
 *   - Standard input and output are both terminals: the user's terminal is raw and every byte goes to the
 * pty, whose line discipline makes Ctrl-C, Ctrl-Z and Ctrl-\ act on the program's foreground group.
 *   - One of them is not (`prog | less`): the user's terminal keeps its settings, which other programs use,
 * and typed lines and signals are passed on. When the program reads single keys (less, vim: the pty's ICANON
 * is off), the terminal is raw for that time.
 *   - The console is in the background: it reads nothing and sets nothing, and shows output.
 *
 * Typed input that the program has not read is returned at its end to the user's shell, as without a console.
 * In line mode no line is taken before the program has read the last one.
 *
 * A stopped program appears to the user's shell as a stopped console: the console restores the terminal,
 * stops itself, and continues the program when it is continued. A child of the console watches meanwhile
 * whether the program is continued or ended by others.
 *
 * When the user's terminal is closed the console ends. The program has a terminal of its own and continues
 * without a signal; another console can attach to it. A SIGHUP that was sent to the console by kill(2) is
 * passed on.
 *
 * While a rollback replaces the processes the pty has no other side: reading the master returns EIO and it
 * polls as hung up until the new processes are there. The loop then looks again a little later; only the
 * keeper reports the end.
 *
 * The loop is poll's, because each step waits for something else and takes what is ready in a given order.
 * With libevent an echoed key would cost 2.3 us more for each of the two steps (bench/event_loop.c).
 */
#include "scip/job/relay.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "base/log.h"
#include "proto/message.h"
#include "scip/job/event.h"
#include "scip/job/keeper.h"
#include "scip/job/user_terminal.h"

#define KEY_ESCAPE 0x1d /* Ctrl-] */
#define KEY_DETACH 'd'

enum { LOOK_AGAIN_MS = 20, WATCH_MODES_MS = 150 };

static const int passed_on[] = {SIGINT,	 SIGTERM, SIGHUP,   SIGQUIT, SIGCONT, SIGUSR1,
				SIGUSR2, SIGTSTP, SIGWINCH, SIGALRM, SIGPIPE};

struct relay {
	const struct relay_options *options;
	int signals;	   /* signalfd */
	int in, out;	   /* the user's terminal, -1 when there is none to read or write */
	int own_in;	   /* `in` when it was opened here */
	bool interactive;  /* standard input and output are both terminals */
	bool stdin_is_tty; /* lines may be read although not interactive */
	bool hung;	   /* the master had no other side when it was last looked at */
	bool was_hung;	   /* ... and since then nothing has come */
	bool escaped;	   /* Ctrl-] was typed */
	bool ahead;	   /* lines wait that the program is not ready for */
	char typed[4096];  /* not taken by the pty yet */
	size_t ntyped;
	bool over;
	enum relay_end end;
	int status;
};

static void relay_finish(struct relay *relay, enum relay_end end)
{
	relay->over = true;
	relay->end = end;
}

/* ---- the program ---- */

static pid_t program_pid(const struct relay *relay)
{
	struct name_process process;

	if (names_process_get(relay->options->names, relay->options->vpid, &process) < 0)
		return -1;
	return process.rpid.n;
}

/* The foreground group of the job's terminal, or the program's own group. */
static pid_t foreground_group(const struct relay *relay)
{
	pid_t pid = program_pid(relay), group = -1;

	if (relay->options->master >= 0 && ioctl(relay->options->master, TIOCGPGRP, &group) == 0 && group > 0)
		return group;
	return pid > 0 ? getpgid(pid) : -1;
}

/* What a terminal sends goes to a whole group, what kill(2) sends to the one process. */
static void pass_signal(const struct relay *relay, int signal, bool from_kernel)
{
	pid_t pid = program_pid(relay), group;

	if (from_kernel || signal == SIGCONT) {
		group = foreground_group(relay);
		if (group > 1)
			kill(-group, signal);
		if (signal != SIGCONT)
			return;
	}
	if (pid > 1)
		kill(pid, signal);
}

/* ---- the user's terminal ---- */

static void open_terminal(struct relay *relay)
{
	bool tty[3] = {isatty(0), isatty(1), isatty(2)};

	relay->in = relay->out = relay->own_in = -1;
	if (relay->options->master < 0)
		return;
	relay->stdin_is_tty = tty[0];
	relay->interactive = tty[0] && tty[1];
	if (!tty[0]) {
		relay->own_in = open("/dev/tty", O_RDWR | O_CLOEXEC | O_NOCTTY);
		relay->in = relay->own_in >= 0 ? relay->own_in : tty[1] ? 1 : tty[2] ? 2 : -1;
	} else {
		relay->in = 0;
	}
	relay->out = tty[1] ? 1 : tty[2] ? 2 : relay->in;
}

/* The program reads single keys: the pty is not in line mode. */
static bool program_wants_keys(const struct relay *relay)
{
	struct termios settings;

	return tcgetattr(relay->options->master, &settings) == 0 && !(settings.c_lflag & ICANON);
}

/* Sets the terminal's mode. True if it is read in that mode. */
static bool adjust_mode(struct relay *relay)
{
	struct termios settings;
	bool want_raw;

	if (relay->in < 0)
		return false;
	if (!terminal_is_foreground(relay->in)) {
		/* the foreground process has set the terminal as it needs it */
		return false;
	}
	want_raw = relay->interactive || program_wants_keys(relay);
	if (want_raw != terminal_is_raw()) {
		if (!want_raw)
			terminal_restore();
		else if (terminal_set_raw(relay->in) == 0)
			terminal_copy_size(relay->in, relay->options->master);
	}
	if (terminal_is_raw())
		return true;
	return relay->stdin_is_tty && tcgetattr(relay->in, &settings) == 0 && (settings.c_lflag & ICANON);
}

/* A stop that is over when its event is read, after a rollback, is none. */
static bool is_stopped(const struct relay *relay)
{
	auto_free char *text = NULL;
	char path[40], state = 0;
	const char *at;

	snprintf(path, sizeof(path), "/proc/%d/stat", (int)program_pid(relay));
	if (io_slurp(AT_FDCWD, path, 1 << 14, &text, NULL) < 0)
		return false;
	at = strrchr(text, ')');
	return at && sscanf(at + 1, " %c", &state) == 1 && (state == 'T' || state == 't');
}

/* True if the next event is a stop; consumes it unless `peek`. */
static bool next_is_stop(const struct relay *relay, bool peek)
{
	Pbeam__KeeperEvent *event = NULL;
	bool stop;

	if (event_receive(relay->options->events, MSG_DONTWAIT | (peek ? MSG_PEEK : 0), &event) <= 0)
		return false;
	stop = event->type == PBEAM__KEEPER_EVENT__TYPE__STOPPED;
	message_free(event);
	return stop;
}

/* Drops the stops reported while the console itself was stopped: it continues the program now. */
static void forget_stops(const struct relay *relay)
{
	while (next_is_stop(relay, true))
		if (!next_is_stop(relay, false))
			return;
}

/* While the console is stopped: continues it as soon as an event comes. It sends SIGCONT repeatedly, because
 * one that precedes the stop has no effect. */
static pid_t watch_events(const struct relay *relay)
{
	const pid_t console = getpid(), child = fork();
	struct pollfd ready = {.fd = relay->options->events, .events = POLLIN};

	if (child)
		return child;
	signal(SIGTSTP, SIG_IGN);
	if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0)
		_exit(1);
	while (poll(&ready, 1, -1) < 0)
		continue;
	while (getppid() == console && kill(console, SIGCONT) == 0)
		nanosleep(&(struct timespec){.tv_nsec = LOOK_AGAIN_MS * 1000000}, NULL);
	_exit(0);
}

/* True if the watch has continued the console, and not the user. */
static bool end_watch(pid_t watch)
{
	const struct timespec no_wait = {0, 0};
	siginfo_t info;
	sigset_t cont;
	bool user = false, woken = false;

	sigemptyset(&cont);
	sigaddset(&cont, SIGCONT);
	for (int looks = 0; looks < 2; looks++) {
		if (sigtimedwait(&cont, &info, &no_wait) == SIGCONT)
			*(info.si_pid == watch ? &woken : &user) = true;
		if (looks == 0 && watch > 0) {
			kill(watch, SIGKILL);
			waitpid(watch, NULL, 0);
		}
	}
	return woken && !user;
}

/* The program is stopped: so is the console, for the user's shell to see. */
static void stop_with_program(struct relay *relay)
{
	bool was_raw = terminal_is_raw();
	struct timespec no_wait = {0, 0};
	bool watched;
	sigset_t stop;
	pid_t watch;

	terminal_restore();
	watch = watch_events(relay);
	sigemptyset(&stop);
	sigaddset(&stop, SIGTSTP);
	if (was_raw) {
		/* a terminal in line mode has stopped the whole pipeline already */
		kill(0, SIGTSTP);
		sigprocmask(SIG_UNBLOCK, &stop, NULL);
		sigprocmask(SIG_BLOCK, &stop, NULL);
	} else {
		sigtimedwait(&stop, NULL, &no_wait);
		raise(SIGSTOP);
	}
	watched = end_watch(watch);
	adjust_mode(relay);
	if (relay->in >= 0)
		terminal_copy_size(relay->in, relay->options->master);
	if (watched)
		return;
	forget_stops(relay);
	pass_signal(relay, SIGCONT, false);
}

/* ---- what happens ---- */

/* Shows all output of the program: poll() flushes what the kernel has not passed to the master yet. */
static void drain_master(struct relay *relay)
{
	struct pollfd ready = {.fd = relay->options->master, .events = POLLIN};
	char bytes[16384];

	while (relay->options->master >= 0 && poll(&ready, 1, 0) > 0 && (ready.revents & POLLIN)) {
		ssize_t n = read(relay->options->master, bytes, sizeof(bytes));

		if (n <= 0)
			break;
		if (relay->out >= 0 && io_write_full(relay->out, bytes, (size_t)n) < 0)
			relay->out = -1;
	}
}

static void serve_event(struct relay *relay, const Pbeam__KeeperEvent *event)
{
	switch ((int)event->type) {
	case PBEAM__KEEPER_EVENT__TYPE__ENDED:
		drain_master(relay);
		relay->status = event->value;
		relay_finish(relay, RELAY_ENDED);
		break;
	case PBEAM__KEEPER_EVENT__TYPE__STOPPED:
		drain_master(relay);
		if (is_stopped(relay))
			stop_with_program(relay);
		break;
	case PBEAM__KEEPER_EVENT__TYPE__TAKEN:
		relay_finish(relay, RELAY_TAKEN);
		break;
	default:
		break;
	}
}

static void on_event(struct relay *relay)
{
	Pbeam__KeeperEvent *event = NULL;
	int r = event_receive(relay->options->events, MSG_DONTWAIT, &event);

	if (r == -EAGAIN || r == -EINTR)
		return;
	if (r <= 0) {
		drain_master(relay);
		relay_finish(relay, RELAY_LOST);
		return;
	}
	serve_event(relay, event);
	message_free(event);
}

static bool terminal_is_gone(const struct relay *relay)
{
	struct termios settings;

	return relay->in >= 0 && tcgetattr(relay->in, &settings) < 0;
}

static void on_console_signal(struct relay *relay)
{
	struct signalfd_siginfo info;

	if (read(relay->signals, &info, sizeof(info)) != (ssize_t)sizeof(info))
		return;
	switch (info.ssi_signo) {
	case SIGWINCH:
		if (relay->in >= 0)
			terminal_copy_size(relay->in, relay->options->master);
		return;
	case SIGPIPE:
		return;
	case SIGCONT:
		adjust_mode(relay);
		if (relay->in >= 0)
			terminal_copy_size(relay->in, relay->options->master);
		break;
	default:
		break;
	}
	if (info.ssi_signo == SIGHUP && (info.ssi_code == SI_KERNEL || terminal_is_gone(relay)) &&
	    relay->options->master >= 0)
		relay_finish(relay, RELAY_HUNG_UP);
	else
		pass_signal(relay, (int)info.ssi_signo, info.ssi_code == SI_KERNEL);
}

static void on_master_output(struct relay *relay, short revents)
{
	char bytes[16384];
	ssize_t n = read(relay->options->master, bytes, sizeof(bytes));

	if (n > 0) {
		if (relay->was_hung && relay->in >= 0)
			terminal_copy_size(relay->in, relay->options->master);
		relay->was_hung = false;
		if (io_write_full(relay->out, bytes, (size_t)n) < 0)
			relay_finish(relay, RELAY_HUNG_UP);
		return;
	}
	relay->hung = n == 0 || errno == EIO || (revents & POLLHUP);
	relay->was_hung |= relay->hung;
}

static void write_typed(struct relay *relay)
{
	while (relay->ntyped) {
		ssize_t n = write(relay->options->master, relay->typed, relay->ntyped);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && errno != EAGAIN)
			relay->ntyped = 0; /* there is no reader */
		if (n <= 0)
			return;
		relay->ntyped -= (size_t)n;
		memmove(relay->typed, relay->typed + n, relay->ntyped);
	}
}

/* Takes typed bytes, looking for the detach key. The escape itself waits for what follows it. */
static void relay_take_typed(struct relay *relay, const char *bytes, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		if (relay->options->may_detach && relay->escaped) {
			relay->escaped = false;
			if (bytes[i] == KEY_DETACH) {
				relay_finish(relay, RELAY_DETACHED);
				return;
			}
			relay->typed[relay->ntyped++] = KEY_ESCAPE;
			if (bytes[i] == KEY_ESCAPE)
				continue;
		} else if (relay->options->may_detach && bytes[i] == KEY_ESCAPE && terminal_is_raw()) {
			relay->escaped = true;
			continue;
		}
		relay->typed[relay->ntyped++] = bytes[i];
	}
}

static void on_typed(struct relay *relay)
{
	char bytes[sizeof(relay->typed) / 4];
	ssize_t n = read(relay->in, bytes, sizeof(bytes));
	struct termios settings;

	if (n > 0) {
		relay_take_typed(relay, bytes, (size_t)n);
		write_typed(relay);
		return;
	}
	if (n < 0 &&
	    (errno == EAGAIN || errno == EINTR || (errno == EIO && !terminal_is_foreground(relay->in))))
		return;
	/* In line mode no bytes are an end of file that was typed; in raw mode the terminal is gone. */
	if (n == 0 && !terminal_is_raw() && tcgetattr(relay->options->master, &settings) == 0) {
		relay->typed[relay->ntyped++] = (char)settings.c_cc[VEOF];
		write_typed(relay);
		return;
	}
	relay_finish(relay, RELAY_HUNG_UP);
}

/* ---- the loop ---- */

static int pick_timeout(const struct relay *relay, bool reading)
{
	if (relay->hung || relay->ahead)
		return LOOK_AGAIN_MS;
	if (relay->in >= 0 && (!relay->interactive || !reading))
		return WATCH_MODES_MS;
	return -1;
}

/* In line mode: a line is there, and one that was typed before it is still unread. */
static bool is_ahead(struct relay *relay)
{
	struct pollfd typed = {.fd = relay->in, .events = POLLIN};

	relay->ahead =
		!terminal_is_raw() && poll(&typed, 1, 0) > 0 && terminal_has_unread(relay->options->master);
	return relay->ahead;
}

static void relay_step(struct relay *relay)
{
	bool reading = adjust_mode(relay) && relay->ntyped == 0 && !is_ahead(relay);
	short master_events = (short)(POLLIN | (relay->ntyped ? POLLOUT : 0));
	struct pollfd fds[4] = {
		{.fd = relay->options->events, .events = POLLIN},
		{.fd = relay->signals, .events = POLLIN},
		{.fd = relay->hung ? -1 : relay->options->master, .events = master_events},
		{.fd = reading ? relay->in : -1, .events = POLLIN},
	};

	if (poll(fds, 4, pick_timeout(relay, reading)) < 0)
		return;
	relay->hung = false;
	/* output first: what was written before the end is shown before it */
	if (fds[2].revents & (POLLIN | POLLHUP | POLLERR))
		on_master_output(relay, fds[2].revents);
	if (fds[2].revents & POLLOUT)
		write_typed(relay);
	if (fds[1].revents && !relay->over)
		on_console_signal(relay);
	if (fds[3].revents && !relay->over)
		on_typed(relay);
	if (fds[0].revents && !relay->over)
		on_event(relay);
}

static void signals_passed_on(sigset_t *set)
{
	sigemptyset(set);
	for (size_t i = 0; i < sizeof(passed_on) / sizeof(passed_on[0]); i++)
		sigaddset(set, passed_on[i]);
}

void relay_block_signals(sigset_t *old)
{
	sigset_t set;

	signals_passed_on(&set);
	sigaddset(&set, SIGTTOU);
	sigaddset(&set, SIGTTIN);
	sigprocmask(SIG_BLOCK, &set, old);
}

/*
 * With the user's terminal in line mode what is typed is echoed there; the pty would show it once more. A
 * program that sets its terminal itself (and so switches the console to raw mode) is not concerned.
 */
static void avoid_double_echo(const struct relay *relay)
{
	struct termios settings;

	if (relay->interactive || !relay->stdin_is_tty || relay->options->may_detach ||
	    tcgetattr(relay->options->master, &settings) < 0)
		return;
	settings.c_lflag &= ~(tcflag_t)ECHO;
	tcsetattr(relay->options->master, TCSANOW, &settings);
}

/* In raw mode already: the pty has made its line ends what a terminal needs. */
static void show_backlog(const struct relay *relay)
{
	char bytes[16384];
	off_t at = 0;
	ssize_t n;

	while (relay->options->backlog >= 0 &&
	       (n = pread(relay->options->backlog, bytes, sizeof(bytes), at)) > 0) {
		if (io_write_full(relay->out, bytes, (size_t)n) < 0)
			return;
		at += n;
	}
}

/* Returns all typed bytes that no program has read, in their order: those in the pty, in the console, and in
 * the user's terminal. */
static void relay_give_back_typed(struct relay *relay)
{
	struct pollfd rest = {.fd = relay->in, .events = POLLIN};
	char bytes[4 * sizeof(relay->typed)];
	size_t have;
	ssize_t n;

	if (relay->end != RELAY_ENDED || relay->in < 0 || !terminal_is_foreground(relay->in))
		return;
	have = terminal_unread(relay->options->master, bytes, 2 * sizeof(relay->typed));
	memcpy(bytes + have, relay->typed, relay->ntyped);
	have += relay->ntyped;
	while (have && have < sizeof(bytes) && terminal_is_raw() && poll(&rest, 1, 0) > 0) {
		n = read(relay->in, bytes + have, sizeof(bytes) - have);
		if (n <= 0)
			break;
		have += (size_t)n;
	}
	terminal_push_back(relay->in, bytes, have);
}

enum relay_end relay_run(const struct relay_options *options, int *status)
{
	struct relay relay = {.options = options};
	sigset_t set;

	signals_passed_on(&set);
	relay.signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	if (relay.signals < 0)
		log_warn("signals cannot be passed on: signalfd: %s", strerror(errno));
	open_terminal(&relay);
	if (relay.in >= 0)
		terminal_copy_size(relay.in, options->master);
	avoid_double_echo(&relay);
	adjust_mode(&relay);
	show_backlog(&relay);
	while (!relay.over)
		relay_step(&relay);
	relay_give_back_typed(&relay);
	terminal_restore();
	terminal_dismiss_guard();
	if (relay.signals >= 0)
		close(relay.signals);
	if (relay.own_in >= 0)
		close(relay.own_in);
	*status = relay.status;
	return relay.end;
}

void relay_close(struct relay_options *options)
{
	cleanup_close(&options->events);
	cleanup_close(&options->master);
	cleanup_close(&options->backlog);
}
