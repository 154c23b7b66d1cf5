/* The end of a line where the stub is, and the process that waits for channels. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "channel/channel.h"
#include "proto/control.pb-c.h"
#include "proto/frame.h"
#include "proto/message.h"
#include "proto/rpc.h"
#include "scip/job/line.h"
#include "scip/job/remote_console.h"
#include "scip/migrate/migrate.h"
#include "scip/tracee/procfs.h"

enum { FREEZE_MS = 10000, TRIES = 100, NAP_NS = 50000000, SENT_MAX = 32, PARENT_NAP_MS = 50 };

/* ---- the stub does as the process did ---- */

static int ask(int sock, uint32_t type, const ProtobufCMessage *message, struct err *err)
{
	struct frame answer = {0};
	int r = frame_send(sock, type, message, NULL, 0, err);

	if (r == 0)
		r = frame_recv(sock, &answer, err);
	if (r == 0)
		r = err_set(err, -ESRCH, "it has ended");
	if (r > 0 && answer.type == PBEAM__RPC__RPC_FAILED) {
		Pbeam__Failed *failed = (void *)frame_unpack(&answer, &pbeam__failed__descriptor, err);

		r = failed ? err_set(err, failed->code < 0 ? failed->code : -EIO, "%s", failed->text)
			   : -EPROTO;
		message_free(failed);
	}
	frame_free(&answer);
	return r < 0 ? r : 0;
}

static int end_stub(int sock, int status, struct err *err)
{
	Pbeam__ScipFreeze freeze = PBEAM__SCIP_FREEZE__INIT;
	Pbeam__ScipExit leave = PBEAM__SCIP_EXIT__INIT;
	int r;

	freeze.timeout_ms = FREEZE_MS;
	leave.status = status;
	r = ask(sock, PBEAM__SCIP_REQUEST__SCIP_FREEZE, &freeze.base, err);
	if (r == 0)
		r = ask(sock, PBEAM__SCIP_REQUEST__SCIP_RESTORE_EXIT, &leave.base, err);
	return r;
}

static int stop_stub(int sock, int signal, struct err *err)
{
	Pbeam__ScipStubStop stop = PBEAM__SCIP_STUB_STOP__INIT;

	stop.signal = signal;
	return ask(sock, PBEAM__SCIP_REQUEST__SCIP_STUB_STOP, &stop.base, err);
}

/* 0: it is here. */
static int find_stub(const struct job *job, struct vpid vpid, struct name_process *process)
{
	int r = names_process_get(job->names, vpid, process);

	return r == 0 && process->state == NAME_STATE_DEAD ? -ESRCH : r;
}

/* True if the stub has gone to another host, with its parent, or nobody can say whether it has. */
static bool has_moved(const struct job *job, struct vpid vpid)
{
	char own[NAME_TEXT_MAX], host[64], stub_host[64];
	struct name_process process;

	if (find_stub(job, vpid, &process) == 0 || !names_cluster(job->names, own))
		return false;
	if (record_place(vpid.n, host, stub_host, NULL, NULL) < 0)
		return true;
	return stub_host[0] && strcmp(stub_host, own) != 0;
}

static int apply(const struct job *job, struct vpid vpid, int status, struct err *err)
{
	struct name_process process;
	auto_close int sock = -1;

	if (find_stub(job, vpid, &process) < 0)
		return 0; /* it was killed */
	if (process.state == NAME_STATE_FROZEN)
		return err_set(err, -EBUSY, "somebody is at work on it");
	if (process.state != NAME_STATE_STUB)
		return 0; /* the process has come back */
	sock = frame_connect_to("scip", process.scip.n, err);
	if (sock < 0)
		return sock;
	if (WIFSTOPPED(status))
		return stop_stub(sock, WSTOPSIG(status), err);
	if (WIFCONTINUED(status))
		return stop_stub(sock, SIGCONT, err);
	return end_stub(sock, status, err);
}

/* Somebody may just be at work on it. False: it has not been done here; the other end asks again. */
static bool obey(const struct job *job, const Pbeam__Line *line)
{
	struct vpid vpid = {line->vpid};
	struct err err = ERR_INIT;

	for (int i = 0; i < TRIES; i++) {
		int r;

		if (has_moved(job, vpid))
			return false;
		err_clear(&err);
		r = apply(job, vpid, line->status, &err);
		if (r == 0)
			return true;
		nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
	}
	log_warn("vpid %d: its stub cannot be made to do as it did: %s", line->vpid, err.text);
	return false;
}

static bool is_anybody_away(const struct job *job)
{
	auto_free struct name_process *all = NULL;
	int n = names_snapshot(job->names, job->entry.keeper, &all);

	for (int i = 0; i < n; i++)
		if (all[i].state == NAME_STATE_STUB || all[i].state == NAME_STATE_FROZEN)
			return true; /* frozen: a stub whose process is on its way home */
	return false;
}

_Noreturn static void become_console(const struct job *job, int channel, int keeper,
				     const struct frame *frame)
{
	struct line_word word = {.type = LINE_WORD_CONSOLE};
	Pbeam__RemoteConsole *hello = (void *)frame_unpack(frame, &pbeam__remote_console__descriptor, NULL);

	if (!is_anybody_away(job)) /* it lags behind */
		_exit(0);
	word.vpid = hello ? hello->vpid : 0;
	if (!hello || send(keeper, &word, sizeof(word), MSG_NOSIGNAL) < 0)
		_exit(1);
	remote_console_home_main(job, channel, hello);
}

/* The stub's end of a line. */
struct stub_line {
	const struct job *job;
	int channel, keeper;
	struct vpid vpid;
	struct line_word sent[SENT_MAX]; /* signals of which the other end has not said that they are there */
	int nsent;
	bool parent; /* whose child the stub is has not been told yet */
};

/* The process is elsewhere by now, or on its way: what it has not got is for the next line. So is what the
 * keeper has said and nobody has read; it can say nothing more before that is read. */
_Noreturn static void give_back(const struct stub_line *s)
{
	struct line_word word;

	if (shutdown(s->keeper, SHUT_RD) < 0)
		log_debug("the keeper has left");
	for (int i = 0; i < s->nsent; i++)
		if (send(s->keeper, &s->sent[i], sizeof(s->sent[i]), MSG_NOSIGNAL) < 0)
			log_warn("vpid %d: signal %d is lost", s->sent[i].vpid, s->sent[i].value);
	while (recv(s->keeper, &word, sizeof(word), MSG_DONTWAIT) == (ssize_t)sizeof(word))
		if (word.type == LINE_WORD_SIGNAL && send(s->keeper, &word, sizeof(word), MSG_NOSIGNAL) < 0)
			log_warn("vpid %d: signal %d is lost", word.vpid, word.value);
	_exit(0);
}

/* While somebody is at work on the stub it may be one that is being ended. */
static void tell_parent(struct stub_line *s)
{
	Pbeam__Line line = PBEAM__LINE__INIT;
	struct name_process process;
	struct procfs_stat stat;

	int r = find_stub(s->job, s->vpid, &process);

	if (r == 0 && process.state == NAME_STATE_FROZEN)
		return;
	s->parent = false;
	if (r < 0 || process.state != NAME_STATE_STUB || procfs_stat_read(process.rpid.n, 0, &stat, NULL) < 0)
		return;
	line.vpid = s->vpid.n;
	line.stub = process.rpid.n;
	line.parent = names_parent(s->job->names, process.rpid, (struct rpid){stat.ppid}).n;
	if (frame_send(s->channel, PBEAM__CHANNEL_MESSAGE__LINE_PARENT, &line.base, NULL, 0, NULL) < 0)
		give_back(s);
}

/* What befell a process that a rollback of the whole job has replaced since is not told to the stub of the
 * new one; or it is this keeper that has not heard of the rollback yet, and the other end calls again. The
 * stub of the job's first process may be where its console is, in no part of a cut: its keeper hears of none.
 */
static bool is_of_another(const struct job *job, const Pbeam__Line *line)
{
	return (job->home || line->vpid != job->entry.root.n) &&
	       strcmp(line->incarnation, job->incarnation) != 0;
}

static void on_channel(struct stub_line *s)
{
	const struct job *job = s->job;
	int channel = s->channel, keeper = s->keeper;
	struct vpid *vpid = &s->vpid;
	struct frame frame = {0};
	Pbeam__Line *line;

	if (frame_recv(channel, &frame, NULL) <= 0)
		give_back(s);
	if (frame.type == PBEAM__CHANNEL_MESSAGE__REMOTE_CONSOLE_HELLO)
		become_console(job, channel, keeper, &frame);
	line = (void *)frame_unpack(&frame, &pbeam__line__descriptor, NULL);
	if (!line)
		_exit(1);
	if (frame.type == PBEAM__CHANNEL_MESSAGE__LINE_HELLO && is_of_another(job, line)) {
		log_info("vpid %d: the line of another incarnation calls", line->vpid);
		(void)!frame_send(channel, PBEAM__CHANNEL_MESSAGE__LINE_REFUSED, &line->base, NULL, 0, NULL);
		_exit(0);
	} else if (frame.type == PBEAM__CHANNEL_MESSAGE__LINE_HELLO) {
		struct line_word word = {.type = LINE_WORD_HELLO, .vpid = line->vpid, .stub = line->stub};

		vpid->n = line->vpid;
		if (has_moved(job, *vpid) || send(keeper, &word, sizeof(word), MSG_NOSIGNAL) < 0)
			_exit(0);
		s->parent = true;
	} else if (frame.type == PBEAM__CHANNEL_MESSAGE__LINE_STATUS && line->vpid == vpid->n) {
		if (!obey(job, line) ||
		    frame_send(channel, PBEAM__CHANNEL_MESSAGE__LINE_DONE, &line->base, NULL, 0, NULL) < 0)
			give_back(s);
	} else if (frame.type == PBEAM__CHANNEL_MESSAGE__LINE_SIGNALLED && s->nsent) {
		struct line_word word = {.type = LINE_WORD_SIGNALLED, .vpid = vpid->n};

		memmove(s->sent, s->sent + 1, (size_t)--s->nsent * sizeof(s->sent[0]));
		if (send(keeper, &word, sizeof(word), MSG_NOSIGNAL) < 0)
			log_debug("the keeper has left");
	}
	message_free(line);
	frame_free(&frame);
}

static void on_keeper(struct stub_line *s)
{
	Pbeam__Line line = PBEAM__LINE__INIT;
	struct line_word word;

	if (recv(s->keeper, &word, sizeof(word), 0) != (ssize_t)sizeof(word))
		give_back(s);
	line.vpid = word.vpid;
	line.signal = word.value;
	line.from = word.from;
	if (word.type == LINE_WORD_PARENT)
		s->parent = true;
	if (word.type != LINE_WORD_SIGNAL)
		return;
	if (s->nsent == SENT_MAX) { /* far more than are ever pending: the oldest are there, or not wanted */
		memmove(s->sent, s->sent + 1, (SENT_MAX - 1) * sizeof(s->sent[0]));
		s->nsent--;
	}
	s->sent[s->nsent++] = word;
	if (frame_send(s->channel, PBEAM__CHANNEL_MESSAGE__LINE_SIGNAL, &line.base, NULL, 0, NULL) < 0)
		give_back(s);
}

void line_stub_main(const struct job *job, int channel, int keeper)
{
	struct stub_line s = {.job = job, .channel = channel, .keeper = keeper};

	for (;;) {
		struct pollfd polls[2] = {{.fd = channel, .events = POLLIN},
					  {.fd = keeper, .events = POLLIN}};

		if (s.parent)
			tell_parent(&s);
		if (poll(polls, 2, s.parent ? PARENT_NAP_MS : -1) <= 0)
			continue;
		if (polls[0].revents)
			on_channel(&s);
		else if (polls[1].revents)
			on_keeper(&s);
	}
}

/* ---- waiting for channels ---- */

void line_expect_main(const struct job *job, int keeper)
{
	uint8_t cookie[16];
	struct err err = ERR_INIT;

	if (job_cookie(job, cookie, &err) < 0)
		_exit(1);
	for (;;) {
		auto_close int expecting = channel_expect(cookie, &err);

		while (expecting >= 0) {
			struct pollfd polls[2] = {{.fd = expecting, .events = POLLIN},
						  {.fd = keeper, .events = POLLIN}};
			auto_close int channel = -1;

			if (poll(polls, 2, -1) < 0)
				continue;
			if (polls[1].revents)
				_exit(0); /* the keeper has left */
			channel = channel_take(expecting, 0, &err);
			if (channel < 0)
				break; /* pbeamd ended: the next one is told */
			if (frame_send(keeper, PBEAM__DAEMON_REQUEST__DAEMON_CHANNEL, NULL, &channel, 1,
				       &err) < 0)
				_exit(0);
		}
		log_info("job %s: %s", job->entry.uuid, err.text);
		err_clear(&err);
		nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
	}
}
