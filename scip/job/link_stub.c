/* The end of a link where the stub is. */
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
#include "scip/job/link_news.h"
#include "scip/job/links.h"
#include "scip/job/remote_console.h"
#include "scip/migrate/migrate.h"
#include "scip/tracee/procfs.h"

enum { FREEZE_MS = 10000, TRIES = 100, NAP_NS = 50000000, SENT_MAX = 32, PARENT_NAP_MS = 50 };

/* ---- state changes: the stub does as the process did ---- */

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
static int find_stub(const struct job *job, struct vpid vpid, struct name_process *process)
{
	int r = names_process_get(job->names, vpid, process);

	return r == 0 && process->state == NAME_STATE_DEAD ? -ESRCH : r;
}

/* True if the stub has moved to another host with its parent, or if that cannot be found out. */
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

static int try_status(const struct job *job, struct vpid vpid, int status, struct err *err)
{
	struct name_process process;
	auto_close int sock = -1;

	if (find_stub(job, vpid, &process) < 0)
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

/* Tries again while the stub is being checkpointed or migrated. False: not done here; the other end asks
 * again. */
static bool apply_status(const struct job *job, const Pbeam__StubLink *link)
{
	struct vpid vpid = {link->vpid};
	struct err err = ERR_INIT;

	for (int i = 0; i < TRIES; i++) {
		int r;

		if (has_moved(job, vpid))
			return false;
		err_clear(&err);
		r = try_status(job, vpid, link->status, &err);
		if (r == 0)
			return true;
		nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
	}
	log_warn("vpid %d: its stub cannot follow its state: %s", link->vpid, err.text);
	return false;
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

_Noreturn static void become_console(const struct job *job, int channel, int keeper,
				     const struct frame *frame)
{
	struct link_news news = {.type = PBEAM__LINK_NEWS__TYPE__CONSOLE};
	Pbeam__RemoteConsole *hello = (void *)frame_unpack(frame, &pbeam__remote_console__descriptor, NULL);

	if (!has_stubs(job)) /* the caller is one that is replaced */
		_exit(0);
	news.vpid = hello ? hello->vpid : 0;
	if (!hello || link_news_send(keeper, &news, 0) < 0)
		_exit(1);
	remote_console_home_main(job, channel, hello);
}

/* The stub's end of a link. */
struct stub_link {
	const struct job *job;
	int channel, keeper;
	struct vpid vpid;
	struct link_news sent[SENT_MAX]; /* signals that the other end has not confirmed */
	int nsent;
	bool parent; /* the stub's parent has to be sent */
};

/* Ends this process. The process that the signals are for has moved, or is migrating: the keeper gets back
 * those that are not confirmed and those that it has sent and that were not read here, for the next link. */
_Noreturn static void return_signals(const struct stub_link *s)
{
	struct link_news news;

	if (shutdown(s->keeper, SHUT_RD) < 0)
		log_debug("the keeper has ended");
	for (int i = 0; i < s->nsent; i++)
		if (link_news_send(s->keeper, &s->sent[i], 0) < 0)
			log_warn("vpid %d: signal %d is lost", s->sent[i].vpid, s->sent[i].value);
	while (link_news_receive(s->keeper, &news, MSG_DONTWAIT) > 0)
		if (news.type == PBEAM__LINK_NEWS__TYPE__SIGNAL && link_news_send(s->keeper, &news, 0) < 0)
			log_warn("vpid %d: signal %d is lost", news.vpid, news.value);
	_exit(0);
}

/* Not while the stub is frozen: it may be about to end. */
static void send_parent(struct stub_link *s)
{
	Pbeam__StubLink link = PBEAM__STUB_LINK__INIT;
	struct name_process process;
	struct procfs_stat stat;

	int r = find_stub(s->job, s->vpid, &process);

	if (r == 0 && process.state == NAME_STATE_FROZEN)
		return;
	s->parent = false;
	if (r < 0 || process.state != NAME_STATE_STUB || procfs_stat_read(process.rpid.n, 0, &stat, NULL) < 0)
		return;
	link.vpid = s->vpid.n;
	link.stub = process.rpid.n;
	link.parent = names_parent(s->job->names, process.rpid, (struct rpid){stat.ppid}).n;
	if (frame_send(s->channel, PBEAM__CHANNEL_MESSAGE__LINK_PARENT, &link.base, NULL, 0, NULL) < 0)
		return_signals(s);
}

/* True if the other end belongs to a process that a rollback of the whole job has replaced, or if this keeper
 * does not know of the rollback yet: then the other end connects again. The stub of the job's first process
 * may be with its console, in no part of a cut: its keeper learns of no rollback. */
static bool is_of_another(const struct job *job, const Pbeam__StubLink *link)
{
	return (job->home || link->vpid != job->entry.root.n) &&
	       strcmp(link->incarnation, job->incarnation) != 0;
}

static void on_guest_frame(struct stub_link *s)
{
	const struct job *job = s->job;
	int channel = s->channel, keeper = s->keeper;
	struct vpid *vpid = &s->vpid;
	struct frame frame = {0};
	Pbeam__StubLink *link;

	if (frame_recv(channel, &frame, NULL) <= 0)
		return_signals(s);
	if (frame.type == PBEAM__CHANNEL_MESSAGE__REMOTE_CONSOLE_HELLO)
		become_console(job, channel, keeper, &frame);
	link = (void *)frame_unpack(&frame, &pbeam__stub_link__descriptor, NULL);
	if (!link)
		_exit(1);
	if (frame.type == PBEAM__CHANNEL_MESSAGE__LINK_HELLO && is_of_another(job, link)) {
		log_info("vpid %d: refused the link of another incarnation", link->vpid);
		(void)!frame_send(channel, PBEAM__CHANNEL_MESSAGE__LINK_REFUSED, &link->base, NULL, 0, NULL);
		_exit(0);
	} else if (frame.type == PBEAM__CHANNEL_MESSAGE__LINK_HELLO) {
		struct link_news news = {
			.type = PBEAM__LINK_NEWS__TYPE__HELLO, .vpid = link->vpid, .stub = link->stub};

		vpid->n = link->vpid;
		if (has_moved(job, *vpid) || link_news_send(keeper, &news, 0) < 0)
			_exit(0);
		s->parent = true;
	} else if (frame.type == PBEAM__CHANNEL_MESSAGE__LINK_STATUS && link->vpid == vpid->n) {
		if (!apply_status(job, link) ||
		    frame_send(channel, PBEAM__CHANNEL_MESSAGE__LINK_DONE, &link->base, NULL, 0, NULL) < 0)
			return_signals(s);
	} else if (frame.type == PBEAM__CHANNEL_MESSAGE__LINK_SIGNALLED && s->nsent) {
		struct link_news news = {.type = PBEAM__LINK_NEWS__TYPE__SIGNALLED, .vpid = vpid->n};

		memmove(s->sent, s->sent + 1, (size_t)--s->nsent * sizeof(s->sent[0]));
		if (link_news_send(keeper, &news, 0) < 0)
			log_debug("the keeper has ended");
	}
	message_free(link);
	frame_free(&frame);
}

static void on_signal_news(struct stub_link *s)
{
	Pbeam__StubLink link = PBEAM__STUB_LINK__INIT;
	struct link_news news;

	if (link_news_receive(s->keeper, &news, 0) <= 0)
		return_signals(s);
	link.vpid = news.vpid;
	link.signal = news.value;
	link.from = news.from;
	if (news.type == PBEAM__LINK_NEWS__TYPE__PARENT)
		s->parent = true;
	if (news.type != PBEAM__LINK_NEWS__TYPE__SIGNAL)
		return;
	if (s->nsent ==
	    SENT_MAX) { /* far more than are ever pending: the oldest have arrived, or do not matter */
		memmove(s->sent, s->sent + 1, (SENT_MAX - 1) * sizeof(s->sent[0]));
		s->nsent--;
	}
	s->sent[s->nsent++] = news;
	if (frame_send(s->channel, PBEAM__CHANNEL_MESSAGE__LINK_SIGNAL, &link.base, NULL, 0, NULL) < 0)
		return_signals(s);
}

void link_stub_main(const struct job *job, int channel, int keeper)
{
	struct stub_link s = {.job = job, .channel = channel, .keeper = keeper};

	for (;;) {
		struct pollfd polls[2] = {{.fd = channel, .events = POLLIN},
					  {.fd = keeper, .events = POLLIN}};

		if (s.parent)
			send_parent(&s);
		if (poll(polls, 2, s.parent ? PARENT_NAP_MS : -1) <= 0)
			continue;
		if (polls[0].revents)
			on_guest_frame(&s);
		else if (polls[1].revents)
			on_signal_news(&s);
	}
}
