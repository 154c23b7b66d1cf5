/*
 * libFuzzer: what another host sends to the process that carries a job's links and its console
 * (scip/job/link_process.h). The first byte selects the side: the host of the stubs and of the console, to
 * which other hosts connect; or the host of a process, whose link and console lead to the other one. The rest
 * is a script of what the peer sends.
 *
 * Both sides run in one event loop, and stay from input to input. What a connection comes from
 * (channel/local.c) and the threads for what blocks (link_work.c) are replaced here. There is no pbeamd, and
 * the keeper takes all that it is told.
 */
#include <errno.h>
#include <event2/event.h>
#include <event2/event_struct.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "proto/message.h"
#include "scip/job/link_peer.h"
#include "scip/job/link_work.h"
#include "scip/job/remote_console.h"
#include "scip/job/remote_console_positions.h"
#include "tests/fuzz/help/fuzz_mutate.h"
#include "tests/fuzz/help/fuzz_place.h"

enum { SIZE_MAX_TAKEN = 64 << 10, TURNS = 100, TIMERS = 64, GUEST = 5, STUB = 0x5eadbee, STOPPED = 0x137f };

#define LINK(name)                                                                                           \
	{                                                                                                    \
		PBEAM__CHANNEL_MESSAGE__LINK_##name, &pbeam__stub_link__descriptor                           \
	}
#define CONSOLE(name)                                                                                        \
	{                                                                                                    \
		PBEAM__CHANNEL_MESSAGE__REMOTE_CONSOLE_##name, &pbeam__remote_console__descriptor            \
	}

static const struct fuzz_kind kinds[] = {
	LINK(HELLO),	  LINK(STATUS),	    LINK(DONE),	      LINK(SIGNAL),   LINK(SIGNALLED),
	LINK(CLOSE),	  LINK(REFUSED),    LINK(PARENT),     CONSOLE(HELLO), CONSOLE(START),
	CONSOLE(DATA),	  CONSOLE(TAKEN),   CONSOLE(WRITTEN), CONSOLE(END),   CONSOLE(FLUSH),
	CONSOLE(FLUSHED), CONSOLE(WINSIZE), CONSOLE(REFUSED), {0, NULL},
};
enum { KINDS = sizeof(kinds) / sizeof(kinds[0]) };

static struct event_base *base;
static struct link_process home, guest;
static struct job home_job = {.arrival = -1}, guest_job = {.arrival = -1};
static int arrived = -1;	/* the connection that the next call of channel_take() or _open() returns */
static int expected[2];		/* readable at [1]: a connection has come */
static int input[2], output[2]; /* of the console at home, and of the process elsewhere */

/* ---- what is replaced ---- */

static int take_arrived(int otherwise)
{
	int sock = arrived;

	arrived = -1;
	return sock < 0 ? otherwise : sock;
}

int channel_open(const char *host, enum _Pbeam__ChannelKind kind, const uint8_t *cookie, struct err *err)
{
	(void)host;
	(void)kind;
	(void)cookie;
	(void)err;
	return take_arrived(-EADDRNOTAVAIL);
}

int channel_expect(const uint8_t cookie[CHANNEL_COOKIE_SIZE], struct err *err)
{
	(void)cookie;
	(void)err;
	return expected[1];
}

int channel_take(int expecting, int timeout_ms, struct err *err)
{
	char byte;

	(void)timeout_ms;
	(void)err;
	(void)!read(expecting, &byte, 1);
	return take_arrived(-ETIMEDOUT);
}

struct done {
	link_work_fn done;
	void *arg;
};

static void on_done(evutil_socket_t fd, short events, void *arg)
{
	struct done *done = arg;

	(void)fd;
	(void)events;
	done->done(done->arg);
	free(done);
}

void link_work_start(link_work_fn run, link_work_fn done, void *arg)
{
	struct done *later = malloc(sizeof(*later));

	if (!later)
		abort();
	*later = (struct done){done, arg};
	run(arg);
	if (event_base_once(base, -1, EV_TIMEOUT, on_done, later, &(struct timeval){0, 0}) < 0)
		abort();
}

/* ---- the two sides ---- */

static void on_keeper_frame(struct stream *stream, struct frame *frame)
{
	(void)stream;
	(void)frame;
}

static void on_keeper_end(struct stream *stream, const struct err *err)
{
	(void)stream;
	(void)err;
	abort();
}

/* What it tells its keeper is read, and dropped. */
static void open_side(struct link_process *process, struct job *job, struct names *names)
{
	static const struct stream_calls calls = {.frame = on_keeper_frame, .end = on_keeper_end};
	int pair[2];
	struct stream *keeper = calloc(1, sizeof(*keeper));

	job->names = names;
	job->entry.keeper.n = getpid();
	job->pty_master = -1;
	for (int i = 0; i < 3; i++)
		job->console[i] = job->console_ends[i] = -1;
	*process = (struct link_process){
		.calls = &link_process_calls, .job = job, .base = base, .expecting = -1};
	if (!keeper || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) < 0 ||
	    stream_open(&process->keeper, base, pair[0], &calls, process) < 0 ||
	    stream_open(keeper, base, pair[1], &calls, keeper) < 0)
		abort();
}

static void open_home(struct names *names)
{
	/* A stub, as has_stubs() looks for one. Nothing may wait for its scip. */
	const struct name_process stub = {
		.vpid = {STUB}, .rpid = {getpid()}, .keeper = {getpid()}, .state = NAME_STATE_STUB};

	open_side(&home, &home_job, names);
	home_job.entry.root.n = GUEST;
	home_job.console[0] = input[0];
	home_job.console[1] = home_job.console[2] = open("/dev/null", O_WRONLY | O_CLOEXEC);
	if (names_process_add(names, &stub) < 0 || remote_console_make_positions(&home_job, NULL) < 0)
		abort();
	link_stub_expect(&home);
}

static void open_guest(struct names *names)
{
	int back[2];

	open_side(&guest, &guest_job, names);
	if (pipe2(back, O_CLOEXEC | O_NONBLOCK) < 0)
		abort();
	guest_job.home = "home";
	guest_job.entry.root.n = GUEST;
	guest_job.remote_console = calloc(1, sizeof(*guest_job.remote_console));
	if (!guest_job.remote_console)
		abort();
	guest_job.console_ends[0] = back[1]; /* its reader is never closed */
	guest_job.console_ends[1] = output[0];
	if (remote_console_prepare(&guest_job, NULL) < 0)
		abort();
	console_guest_start(&guest);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	struct names *names;

	fuzz_place_open(*argc, *argv);
	unsetenv("PATH"); /* nothing is to start a pbeamd */
	base = event_base_new();
	if (!base || names_open(&names, NULL) < 0 ||
	    socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, expected) < 0 ||
	    pipe2(input, O_CLOEXEC | O_NONBLOCK) < 0 || pipe2(output, O_CLOEXEC | O_NONBLOCK) < 0)
		abort();
	open_home(names);
	open_guest(names);
	return 0;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max, unsigned seed)
{
	if (size < 1 || max < 2 || seed % 32 == 0)
		return LLVMFuzzerMutate(data, size, max);
	return 1 + fuzz_mutate_script(kinds, KINDS, data + 1, size - 1, max - 1, seed);
}

/* ---- one input ---- */

struct timers {
	struct event *v[TIMERS];
	int n;
};

static int add_timer(const struct event_base *of, const struct event *event, void *arg)
{
	struct timers *timers = arg;

	(void)of;
	if (event_get_fd(event) < 0 && event_pending(event, EV_TIMEOUT, NULL) && timers->n < TIMERS)
		timers->v[timers->n++] = (struct event *)(uintptr_t)event;
	return 0;
}

/* What would be done after some time is done now. */
static void expire_timers(void)
{
	struct timers timers = {.n = 0};

	event_base_foreach_event(base, add_timer, &timers);
	for (int i = 0; i < timers.n; i++)
		event_active(timers.v[i], EV_TIMEOUT, 0);
	event_base_loop(base, EVLOOP_NONBLOCK);
}

static void turn(void)
{
	event_base_loop(base, EVLOOP_NONBLOCK);
}

static void serve_home(void)
{
	static struct console_positions fresh;
	struct console_positions *positions = home_job.console_positions;
	char bytes[64];

	while (read(input[0], bytes, sizeof(bytes)) > 0)
		;
	if (write(input[1], "typed bytes", 11) != 11 || write(expected[0], "c", 1) != 1)
		abort();
	memcpy(positions->parts, fresh.parts, sizeof(positions->parts));
	atomic_store(&positions->taken, 0);
	for (int i = 0; i < TURNS && (arrived >= 0 || home.incoming); i++)
		turn();
	while (home.homes) /* their threads end */
		event_base_loop(base, EVLOOP_ONCE);
}

static void serve_guest(void)
{
	struct remote_console_shared *shared = guest_job.remote_console->shared;
	Pbeam__LinkNews news = PBEAM__LINK_NEWS__INIT;

	shared->started = false;
	shared->given = 0;
	atomic_store(&shared->done, atomic_load(&shared->wanted));
	memset(shared->output, 0, sizeof(shared->output));
	(void)!write(output[1], "output", 6);
	news.vpid = GUEST;
	news.text = (char *)(uintptr_t) "home";
	link_guest_news(&guest, PBEAM__LINK_NEWS_TYPE__LINK_NEWS_GUEST, &news);
	news.value = STOPPED;
	link_guest_news(&guest, PBEAM__LINK_NEWS_TYPE__LINK_NEWS_STATUS, &news);
	expire_timers(); /* the console calls home */
	for (int i = 0; i < TURNS && (arrived >= 0 || link_peer_is_connected(guest.peers)); i++)
		turn();
	if (link_peer_is_connected(guest.peers))
		link_peer_drop(guest.peers);
	link_guest_news(&guest, PBEAM__LINK_NEWS_TYPE__LINK_NEWS_FORGET, &news);
	turn();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	uint8_t *bytes = size && size <= SIZE_MAX_TAKEN
				 ? fuzz_script_bytes(kinds, KINDS, NULL, data + 1, size - 1, &size)
				 : NULL;
	int ends[2];

	if (bytes && fuzz_place_socket(bytes, size, ends)) {
		arrived = ends[1];
		if (data[0] % 2)
			serve_guest();
		else
			serve_home();
		if (arrived >= 0)
			close(take_arrived(-1));
		close(ends[0]);
	}
	free(bytes);
	return 0;
}
