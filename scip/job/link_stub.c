/* The ends of links where the stubs are, and the connections that they come over. */
#include <errno.h>
#include <event2/event.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/list.h"
#include "base/log.h"
#include "proto/control.pb-c.h"
#include "proto/message.h"
#include "proto/rpc.h"
#include "scip/job/link_process.h"
#include "scip/job/link_work.h"
#include "scip/migrate/migrate.h"
#include "scip/tracee/procfs.h"

enum { FREEZE_MS = 10000, TRIES = 100, NAP_NS = 50000000, EXPECT_NAP_MS = 50, PARENT_NAP_MS = 50 };

/* A connection from a host that has processes whose stubs are here. */
struct link_incoming {
	struct link_incoming *next;
	struct link_process *process;
	struct stream stream;
};

/* A stub here, from the LINK_HELLO of its process on. */
struct link_stub {
	struct link_stub *next;
	struct link_process *process;
	struct link_incoming *incoming;
	uint64_t id;
	struct vpid vpid;
	int32_t known;		/* the pid that the process knows of the stub */
	uint64_t taken;		/* the last signal that it has */
	bool attached;		/* the stub is here: the keeper knows of the link */
	bool changed, applying; /* `status` is to be applied; it is being applied */
	int status;
	struct event *parent; /* sends the stub's parent */
};

static struct link_stub *stub_find(const struct link_process *process, int32_t vpid)
{
	struct link_stub *s = process->stubs;

	while (s && s->vpid.n != vpid)
		s = s->next;
	return s;
}

static struct link_stub *stub_by_id(const struct link_process *process, uint64_t id)
{
	struct link_stub *s = process->stubs;

	while (s && s->id != id)
		s = s->next;
	return s;
}

static void incoming_send(struct link_incoming *incoming, uint32_t type, const ProtobufCMessage *message)
{
	if (stream_send(&incoming->stream, type, message, NULL, 0) < 0)
		log_error("a message for another host is lost");
}

void link_incoming_send(struct link_incoming *incoming, uint32_t type, const Pbeam__RemoteConsole *message)
{
	incoming_send(incoming, type, &message->base);
}

static void stub_send(const struct link_stub *s, uint32_t type, Pbeam__StubLink *link)
{
	link->vpid = s->vpid.n;
	incoming_send(s->incoming, type, &link->base);
}

static void stub_free(struct link_stub *s)
{
	list_remove(&s->process->stubs, s);
	event_free(s->parent);
	free(s);
}

static void stub_tell_keeper(const struct link_stub *s, enum _Pbeam__LinkNewsType type, uint64_t seq)
{
	Pbeam__LinkNews news = PBEAM__LINK_NEWS__INIT;

	news.vpid = s->vpid.n;
	news.stub = s->known;
	news.seq = seq;
	link_process_tell(s->process, type, &news);
}

/* The process has another link, or none. */
static void stub_link_end(struct link_stub *s)
{
	if (s->attached)
		stub_tell_keeper(s, PBEAM__LINK_NEWS_TYPE__LINK_NEWS_CLOSED, 0);
	stub_free(s);
}

/* The process is to look for its stub again. */
static void stub_close(struct link_stub *s)
{
	Pbeam__StubLink link = PBEAM__STUB_LINK__INIT;

	stub_send(s, PBEAM__CHANNEL_MESSAGE__LINK_CLOSE, &link);
	stub_link_end(s);
}

static void link_incoming_free(struct link_incoming *incoming)
{
	struct link_process *process = incoming->process;
	struct link_stub *next;

	list_remove(&process->incoming, incoming);
	for (struct link_stub *s = process->stubs; s; s = next) {
		next = s->next;
		if (s->incoming == incoming)
			stub_link_end(s);
	}
	console_home_lost(process, incoming);
	stream_close(&incoming->stream);
	free(incoming);
	link_process_check_end(process);
}

/* Once the keeper has ended, a connection is kept until the last state changes are confirmed over it. */
static void incoming_check_end(struct link_incoming *incoming)
{
	if (incoming->process->keeper.fd >= 0 || incoming->stream.queued)
		return;
	for (const struct link_stub *s = incoming->process->stubs; s; s = s->next)
		if (s->incoming == incoming && s->applying)
			return;
	link_incoming_free(incoming);
}

/* ---- state changes: the stub does as the process did ---- */

struct change {
	struct link_process *process;
	uint64_t id;
	struct vpid vpid;
	int status;
	bool done; /* applied; of a look-up: the stub has moved */
};

static int call_scip(int sock, uint32_t type, const ProtobufCMessage *message, struct err *err)
{
	struct frame reply = {0};
	int r = frame_send(sock, type, message, NULL, 0, err);

	if (r == 0)
		r = rpc_receive_frame(sock, "its scip", &reply, err);
	if (r < 0)
		return r;
	frame_free(&reply);
	return 0;
}

static int end_stub(int sock, int status, struct err *err)
{
	Pbeam__ScipFreeze freeze = PBEAM__SCIP_FREEZE__INIT;
	Pbeam__ScipExit leave = PBEAM__SCIP_EXIT__INIT;
	int r;

	freeze.timeout_ms = FREEZE_MS;
	leave.status = status;
	r = call_scip(sock, PBEAM__SCIP_REQUEST__SCIP_FREEZE, &freeze.base, err);
	if (r == 0)
		r = call_scip(sock, PBEAM__SCIP_REQUEST__SCIP_RESTORE_EXIT, &leave.base, err);
	return r;
}

static int stop_stub(int sock, int signal, struct err *err)
{
	Pbeam__ScipStubStop stop = PBEAM__SCIP_STUB_STOP__INIT;

	stop.signal = signal;
	return call_scip(sock, PBEAM__SCIP_REQUEST__SCIP_STUB_STOP, &stop.base, err);
}

/* 0: the stub, or the process itself, is here. */
static int stub_find_process(const struct job *job, struct vpid vpid, struct name_process *process)
{
	int r = names_process_get(job->names, vpid, process);

	return r == 0 && process->state == NAME_STATE_DEAD ? -ESRCH : r;
}

/* True if the stub has moved to another host with its parent, or if that cannot be found out. */
static bool has_moved(const struct job *job, struct vpid vpid)
{
	char own[NAME_TEXT_MAX], host[64], stub_host[64];
	struct name_process process;

	if (stub_find_process(job, vpid, &process) == 0 || !names_cluster(job->names, own))
		return false;
	if (record_place(vpid.n, host, stub_host, NULL, NULL) < 0)
		return true;
	return stub_host[0] && strcmp(stub_host, own) != 0;
}

static int try_status(const struct job *job, struct vpid vpid, int status, struct err *err)
{
	struct name_process process;
	auto_close int sock = -1;

	if (stub_find_process(job, vpid, &process) < 0)
		return 0; /* the stub was killed */
	if (process.state == NAME_STATE_FROZEN)
		return err_set(err, -EBUSY, "it is being checkpointed, rolled back or migrated");
	if (process.state != NAME_STATE_STUB)
		return 0; /* the process has returned */
	sock = frame_connect_to("scip", process.scip.n, err);
	if (sock < 0)
		return sock;
	if (WIFSTOPPED(status))
		return stop_stub(sock, WSTOPSIG(status), err);
	if (WIFCONTINUED(status))
		return stop_stub(sock, SIGCONT, err);
	return end_stub(sock, status, err);
}

/* Tries again while the stub is being checkpointed or migrated. */
static void apply_status(void *arg)
{
	struct change *change = arg;
	const struct job *job = change->process->job;
	struct err err = ERR_INIT;

	for (int i = 0; i < TRIES; i++) {
		if (has_moved(job, change->vpid))
			return;
		err_clear(&err);
		change->done = try_status(job, change->vpid, change->status, &err) == 0;
		if (change->done)
			return;
		nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
	}
	log_warn("vpid %d: its stub cannot follow its state: %s", change->vpid.n, err.text);
}

static void on_applied(void *arg)
{
	auto_free struct change *change = arg;
	struct link_stub *s = stub_by_id(change->process, change->id);
	Pbeam__StubLink link = PBEAM__STUB_LINK__INIT;
	struct link_incoming *incoming;

	if (!s)
		return;
	s->applying = false;
	incoming = s->incoming;
	if (change->done)
		stub_send(s, PBEAM__CHANNEL_MESSAGE__LINK_DONE, &link);
	else
		stub_close(s);
	incoming_check_end(incoming);
}

/* False: there is no memory for it. */
static bool start_change(struct link_stub *s, link_work_fn run, link_work_fn done)
{
	struct change *change = calloc(1, sizeof(*change));

	if (!change)
		return false;
	*change = (struct change){.process = s->process, .id = s->id, .vpid = s->vpid, .status = s->status};
	link_work_start(run, done, change);
	return true;
}

static void stub_apply(struct link_stub *s)
{
	if (!s->attached || !s->changed || s->applying)
		return;
	s->changed = false;
	s->applying = start_change(s, apply_status, on_applied);
	if (!s->applying)
		stub_close(s);
}

/* ---- the parent ---- */

/* Not while the stub is frozen: it may be about to end. */
static void send_parent(int fd, short events, void *arg)
{
	Pbeam__StubLink link = PBEAM__STUB_LINK__INIT;
	struct name_process process;
	struct procfs_stat stat;
	struct link_stub *s = arg;
	struct names *names = s->process->job->names;
	int r = stub_find_process(s->process->job, s->vpid, &process);

	if (r == 0 && process.state == NAME_STATE_FROZEN) {
		link_process_timer_start(s->parent, PARENT_NAP_MS);
		return;
	}
	if (r < 0 || process.state != NAME_STATE_STUB || procfs_stat_read(process.rpid.n, 0, &stat, NULL) < 0)
		return;
	link.stub = process.rpid.n;
	link.parent = names_parent(names, process.rpid, (struct rpid){stat.ppid}).n;
	stub_send(s, PBEAM__CHANNEL_MESSAGE__LINK_PARENT, &link);
}

/* ---- attaching ---- */

/* True if the other end belongs to a process that a rollback of the whole job has replaced, or if this keeper
 * does not know of the rollback yet: then the other end connects again. The stub of the job's first process
 * may be with its console, in no part of a cut: its keeper learns of no rollback. */
static bool is_of_another(const struct job *job, const Pbeam__StubLink *link)
{
	return (job->home || link->vpid != job->entry.root.n) &&
	       strcmp(link->incarnation, job->incarnation) != 0;
}

static void look_for_stub(void *arg)
{
	struct change *change = arg;

	change->done = has_moved(change->process->job, change->vpid);
}

static void on_stub_found(void *arg)
{
	auto_free struct change *change = arg;
	struct link_stub *s = stub_by_id(change->process, change->id);

	if (!s)
		return;
	if (change->done) {
		stub_close(s);
		return;
	}
	s->attached = true;
	stub_tell_keeper(s, PBEAM__LINK_NEWS_TYPE__LINK_NEWS_HELLO, s->taken);
	send_parent(-1, 0, s);
	stub_apply(s);
}

static void incoming_take_hello(struct link_incoming *incoming, Pbeam__StubLink *hello)
{
	struct link_process *process = incoming->process;
	struct link_stub *s = stub_find(process, hello->vpid);

	if (is_of_another(process->job, hello)) {
		log_info("vpid %d: refused the link of another incarnation", hello->vpid);
		incoming_send(incoming, PBEAM__CHANNEL_MESSAGE__LINK_REFUSED, &hello->base);
		return;
	}
	if (s && s->incoming == incoming)
		stub_link_end(s);
	else if (s)
		stub_close(s); /* the process has moved, and its host does not know yet */
	s = calloc(1, sizeof(*s));
	if (!s) {
		incoming_send(incoming, PBEAM__CHANNEL_MESSAGE__LINK_CLOSE, &hello->base);
		return;
	}
	*s = (struct link_stub){.process = process,
				.incoming = incoming,
				.id = ++process->last_id,
				.vpid = {hello->vpid},
				.known = hello->stub,
				.taken = hello->seq,
				.next = process->stubs};
	s->parent = link_process_timer(process, send_parent, s);
	process->stubs = s;
	if (!start_change(s, look_for_stub, on_stub_found))
		stub_close(s);
}

/* ---- frames of a connection ---- */

static void on_incoming_end(struct stream *stream, const struct err *err)
{
	if (err->code)
		log_info("a link from another host: %s", err->text);
	link_incoming_free(stream->owner);
}

static void on_incoming_drained(struct stream *stream)
{
	incoming_check_end(stream->owner);
}

static void incoming_take_link(struct link_incoming *incoming, uint32_t type, Pbeam__StubLink *link)
{
	struct link_stub *s = stub_find(incoming->process, link->vpid);

	if (type == PBEAM__CHANNEL_MESSAGE__LINK_HELLO) {
		incoming_take_hello(incoming, link);
		return;
	}
	if (!s || s->incoming != incoming)
		return; /* its link was closed meanwhile */
	switch (type) {
	case PBEAM__CHANNEL_MESSAGE__LINK_STATUS:
		s->status = link->status;
		s->changed = true;
		stub_apply(s);
		break;
	case PBEAM__CHANNEL_MESSAGE__LINK_SIGNALLED:
		stub_tell_keeper(s, PBEAM__LINK_NEWS_TYPE__LINK_NEWS_CONFIRMED, link->seq);
		break;
	case PBEAM__CHANNEL_MESSAGE__LINK_CLOSE:
		stub_link_end(s);
		break;
	default:
		break;
	}
}

static void on_incoming_frame(struct stream *stream, struct frame *frame)
{
	struct link_incoming *incoming = stream->owner;
	const bool console = frame->type >= PBEAM__CHANNEL_MESSAGE__REMOTE_CONSOLE_HELLO &&
			     frame->type <= PBEAM__CHANNEL_MESSAGE__REMOTE_CONSOLE_REFUSED;
	ProtobufCMessage *message = frame_unpack(
		frame, console ? &pbeam__remote_console__descriptor : &pbeam__stub_link__descriptor, NULL);

	if (!message)
		link_incoming_free(incoming);
	else if (console)
		console_home_frame(incoming->process, incoming, frame->type, (void *)message);
	else
		incoming_take_link(incoming, frame->type, (void *)message);
	message_free(message);
}

static void accept_connection(struct link_process *process, int sock)
{
	static const struct stream_calls calls = {
		.frame = on_incoming_frame, .end = on_incoming_end, .drained = on_incoming_drained};
	struct link_incoming *incoming = calloc(1, sizeof(*incoming));

	if (!incoming) {
		close(sock);
		return;
	}
	incoming->process = process;
	if (stream_open(&incoming->stream, process->base, sock, &calls, incoming) < 0) {
		free(incoming);
		return;
	}
	incoming->next = process->incoming;
	process->incoming = incoming;
}

/* ---- expecting connections ---- */

struct expectation {
	struct link_process *process;
	int sock;
	struct err err;
};

static void expect_connections(void *arg)
{
	struct expectation *expectation = arg;

	expectation->sock = channel_expect(expectation->process->cookie, &expectation->err);
}

/* pbeamd has ended, or cannot be reached: the next one is asked. */
static void expect_again(struct link_process *process, const struct err *err)
{
	log_info("job %s: %s", process->job->entry.uuid, err->text);
	process->expecting = -1;
	link_process_timer_start(process->expected, EXPECT_NAP_MS);
}

static void on_expecting(void *arg)
{
	auto_free struct expectation *expectation = arg;
	struct link_process *process = expectation->process;

	if (expectation->sock < 0) {
		expect_again(process, &expectation->err);
		return;
	}
	process->expecting = expectation->sock;
	event_assign(process->expected, process->base, process->expecting, EV_READ | EV_PERSIST,
		     event_get_callback(process->expected), process);
	if (event_add(process->expected, NULL) < 0)
		log_error("job %s: other hosts cannot reach it: no memory", process->job->entry.uuid);
}

static void start_expecting(struct link_process *process)
{
	struct expectation *expectation = calloc(1, sizeof(*expectation));

	if (!expectation) {
		link_process_timer_start(process->expected, EXPECT_NAP_MS);
		return;
	}
	expectation->process = process;
	link_work_start(expect_connections, on_expecting, expectation);
}

/* A connection has come, or it is time to expect them again. */
static void on_expected(int fd, short events, void *arg)
{
	struct link_process *process = arg;
	struct err err = ERR_INIT;
	int sock;

	if (process->keeper.fd < 0)
		return;
	if (process->expecting < 0) {
		start_expecting(process);
		return;
	}
	sock = channel_take(process->expecting, 0, &err);
	if (sock >= 0) {
		accept_connection(process, sock);
		return;
	}
	if (sock == -ETIMEDOUT)
		return;
	event_del(process->expected);
	close(process->expecting);
	event_assign(process->expected, process->base, -1, 0, on_expected, process);
	expect_again(process, &err);
}

void link_stub_expect(struct link_process *process)
{
	if (process->expects)
		return;
	process->expects = true;
	process->expected = link_process_timer(process, on_expected, process);
	console_home_prepare(process);
	start_expecting(process);
}

/* ---- from the keeper ---- */

static void reset_stubs(struct link_process *process, const char *incarnation)
{
	struct job *job = process->job;

	if (!strcmp(job->incarnation, incarnation))
		return;
	snprintf(job->incarnation, sizeof(job->incarnation), "%s", incarnation);
	while (process->stubs)
		stub_close(process->stubs);
}

void link_stub_news(struct link_process *process, uint32_t type, const Pbeam__LinkNews *news)
{
	struct link_stub *s = stub_find(process, news->vpid);
	Pbeam__StubLink link = PBEAM__STUB_LINK__INIT;

	if (type == PBEAM__LINK_NEWS_TYPE__LINK_NEWS_RESET)
		reset_stubs(process, news->text);
	if (!s || !s->attached)
		return;
	switch (type) {
	case PBEAM__LINK_NEWS_TYPE__LINK_NEWS_SIGNAL:
		link.signal = news->value;
		link.from = news->from;
		link.seq = news->seq;
		stub_send(s, PBEAM__CHANNEL_MESSAGE__LINK_SIGNAL, &link);
		break;
	case PBEAM__LINK_NEWS_TYPE__LINK_NEWS_PARENT:
		send_parent(-1, 0, s);
		break;
	case PBEAM__LINK_NEWS_TYPE__LINK_NEWS_DROP:
		stub_close(s);
		break;
	default:
		break;
	}
}

void link_stub_orphan(struct link_process *process)
{
	struct link_incoming *next;

	if (process->expecting >= 0) {
		event_del(process->expected);
		close(process->expecting);
		process->expecting = -1;
	}
	for (struct link_incoming *incoming = process->incoming; incoming; incoming = next) {
		next = incoming->next;
		incoming_check_end(incoming);
	}
}
