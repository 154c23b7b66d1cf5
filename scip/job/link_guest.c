/* The end of a link where the process is. */
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
#include "proto/frame.h"
#include "proto/message.h"
#include "scip/bridge/bridge.h"
#include "scip/job/link_news.h"
#include "scip/job/links.h"
#include "scip/job/remote_console.h"
#include "scip/migrate/migrate.h"
#include "scip/rebuild/scip_link.h"

enum {
	STATUSES_MAX = 64,
	REFUSALS = 30,
	REFUSALS_ENDED = 3,
	REFUSED_NAP_MS = 100,
	FIRST_NAP_MS = 50,
	LAST_NAP_MS = 2000
};

struct guest {
	const struct job *job;
	struct vpid vpid;
	char host[64];
	uint8_t cookie[16];
	int keeper, channel;		/* -1: gone */
	int32_t statuses[STATUSES_MAX]; /* to be reported, oldest first */
	int nstatuses;
	bool reported; /* the first of them, on this channel */
	bool dialed;   /* before: the stub may have moved since, with its parent */
	int nap_ms;
	int refused;
	int32_t stub;	    /* its real pid, once that is known */
	uint64_t place;	    /* version of the registry's entry that places the process here; 0: none */
	struct vpid parent; /* the stub's new parent, until the process is told; else 0 */
	int parent_nap_ms;
};

static bool is_end(int status)
{
	return !WIFSTOPPED(status) && !WIFCONTINUED(status);
}

static void add_status(struct guest *g, int status)
{
	if (g->nstatuses == STATUSES_MAX) /* drops stops and continuations that were not reported */
		memmove(g->statuses + 1, g->statuses + 2,
			(size_t)(--g->nstatuses - 1) * sizeof(g->statuses[0]));
	g->statuses[g->nstatuses++] = status;
}

static bool has_ended(const struct guest *g)
{
	return g->nstatuses && is_end(g->statuses[g->nstatuses - 1]);
}

static void close_channel(struct guest *g)
{
	close(g->channel);
	g->channel = -1;
	g->reported = false;
}

/* The stub's keeper has ended, and the stub with it: the process is killed, as it would be at home. */
static void lose_stub(struct guest *g)
{
	struct link_news news = {.type = PBEAM__LINK_NEWS__TYPE__SIGNAL, .vpid = g->vpid.n, .value = SIGKILL};

	bool ended = has_ended(g);

	g->nap_ms = REFUSED_NAP_MS;
	if (++g->refused < (ended ? REFUSALS_ENDED : REFUSALS))
		return;
	log_warn("vpid %d: its stub on %s is gone; it is killed", g->vpid.n, g->host);
	if (g->keeper >= 0 && link_news_send(g->keeper, &news, 0) < 0)
		log_debug("vpid %d: its keeper has ended", g->vpid.n);
	_exit(0);
}

/* Either a rollback has replaced the process after its end, or the stub's keeper does not know of the
 * rollback yet. */
static void on_refusal(struct guest *g)
{
	close_channel(g);
	if (g->keeper < 0 && ++g->refused == REFUSALS) {
		log_info("vpid %d: it was rolled back since; its end is not reported", g->vpid.n);
		_exit(0);
	}
	nanosleep(&(struct timespec){.tv_nsec = REFUSED_NAP_MS * 1000000L}, NULL);
}

/* Looks up where the stub is. False: the process itself has moved on, and has a link there. */
static bool find_stub(struct guest *g)
{
	char host[64], stub_host[64], own[64];
	struct err err = ERR_INIT;

	if (record_place(g->vpid.n, host, stub_host, NULL, &err) < 0)
		log_info("vpid %d: where its stub is: %s", g->vpid.n, err.text);
	else if (stub_host[0] && strcmp(stub_host, g->host) != 0) {
		log_info("vpid %d: its stub has moved from %s to %s", g->vpid.n, g->host, stub_host);
		snprintf(g->host, sizeof(g->host), "%s", stub_host);
		g->refused = g->stub = 0;
	}
	return !host[0] || record_own_host(own, &err) < 0 || !strcmp(host, own);
}

static void connect_to_stub(struct guest *g)
{
	Pbeam__StubLink hello = PBEAM__STUB_LINK__INIT;
	struct err err = ERR_INIT;

	/* Two links of one stub would end each other in turn until this keeper reports the move. */
	if (g->dialed && !find_stub(g)) {
		if (g->keeper < 0)
			_exit(0);
		g->nap_ms = REFUSED_NAP_MS;
		return;
	}
	g->dialed = true;
	hello.vpid = g->vpid.n;
	hello.stub = g->stub;
	hello.incarnation = (char *)(uintptr_t)g->job->incarnation;
	g->channel = channel_open(g->host, PBEAM__CHANNEL_KIND__CHANNEL_SESSION, g->cookie, &err);
	if (g->channel >= 0 &&
	    frame_send(g->channel, PBEAM__CHANNEL_MESSAGE__LINK_HELLO, &hello.base, NULL, 0, &err) < 0)
		close_channel(g);
	if (g->channel >= 0) {
		g->nap_ms = FIRST_NAP_MS;
		return;
	}
	if (g->channel == -EADDRNOTAVAIL) {
		lose_stub(g);
		return;
	}
	log_info("vpid %d: its stub on %s cannot be reached: %s", g->vpid.n, g->host, err.text);
	g->nap_ms = g->nap_ms * 2 < LAST_NAP_MS ? g->nap_ms * 2 : LAST_NAP_MS;
}

static void confirm_signal(struct guest *g)
{
	Pbeam__StubLink link = PBEAM__STUB_LINK__INIT;

	link.vpid = g->vpid.n;
	if (g->channel >= 0 &&
	    frame_send(g->channel, PBEAM__CHANNEL_MESSAGE__LINK_SIGNALLED, &link.base, NULL, 0, NULL) < 0)
		close_channel(g);
}

static void on_keeper_news(struct guest *g)
{
	struct link_news news;

	if (link_news_receive(g->keeper, &news, 0) > 0) {
		if (news.type == PBEAM__LINK_NEWS__TYPE__MOVED)
			_exit(0);
		if (news.type == PBEAM__LINK_NEWS__TYPE__STATUS)
			add_status(g, news.value);
		if (news.type == PBEAM__LINK_NEWS__TYPE__SIGNALLED)
			confirm_signal(g);
		return;
	}
	/* The keeper has ended. If it was killed so was the process, unless the process has moved on and the
	 * keeper could not report it. */
	close(g->keeper);
	g->keeper = -1;
	if (has_ended(g))
		return;
	if (!find_stub(g))
		_exit(0);
	add_status(g, SIGKILL);
}

/* Tells the process that its parent is another one. 0: it has, or need not be told. */
static int report_parent(const struct guest *g, struct err *err)
{
	Pbeam__ScipOrphan orphan = PBEAM__SCIP_ORPHAN__INIT;
	char host[64], stub_host[64], own[64];
	struct name_process process;
	auto_close int sock = -1;
	int r;

	if (g->keeper < 0) /* the process with the number is of a rollback */
		return 0;
	if (names_process_get(g->job->names, g->vpid, &process) < 0 || process.state == NAME_STATE_DEAD ||
	    !process.remote_parent || process.parent.n == g->parent.n)
		return 0;
	if (process.state != NAME_STATE_RUNNING)
		return err_set(err, -EBUSY, "it is being checkpointed, rolled back or migrated");
	r = record_own_host(own, err);
	if (r == 0)
		r = record_place(g->vpid.n, host, stub_host, NULL, err);
	if (r < 0)
		return r;
	/* The stub may have left that host with its parent: what remains there is an orphan as well. */
	if (strcmp(host, own) != 0 || strcmp(stub_host, g->host) != 0)
		return 0;
	sock = scip_link_connect(process.scip, err);
	orphan.parent = g->parent.n;
	return sock < 0 ? sock
			: scip_link_call(sock, PBEAM__SCIP_REQUEST__SCIP_ORPHAN, &orphan.base,
					 &pbeam__scip_done__descriptor, NULL, err);
}

/* A process that is being migrated is told at its next host, where it has another link. */
static void follow_parent(struct guest *g)
{
	struct err err = ERR_INIT;
	int r = report_parent(g, &err);

	if (r == 0)
		g->parent.n = 0;
	else
		log_debug("vpid %d: it is not told yet that its parent has ended: %s", g->vpid.n, err.text);
	g->parent_nap_ms = g->parent_nap_ms * 2 < LAST_NAP_MS ? g->parent_nap_ms * 2 : LAST_NAP_MS;
}

static void on_stub_frame(struct guest *g)
{
	struct link_news news = {.type = PBEAM__LINK_NEWS__TYPE__SIGNAL, .vpid = g->vpid.n};
	struct frame frame = {0};
	Pbeam__StubLink *link = NULL;

	if (frame_recv(g->channel, &frame, NULL) <= 0) {
		close_channel(g);
		return;
	}
	link = (void *)frame_unpack(&frame, &pbeam__stub_link__descriptor, NULL);
	if (link && frame.type == PBEAM__CHANNEL_MESSAGE__LINK_DONE && g->reported) {
		if (is_end(g->statuses[0])) {
			if (g->place)
				record_forget_place(g->vpid.n, g->place);
			_exit(0);
		}
		memmove(g->statuses, g->statuses + 1, (size_t)--g->nstatuses * sizeof(g->statuses[0]));
		g->reported = false;
	} else if (link && frame.type == PBEAM__CHANNEL_MESSAGE__LINK_REFUSED) {
		on_refusal(g);
	} else if (link && frame.type == PBEAM__CHANNEL_MESSAGE__LINK_PARENT) {
		g->stub = link->stub;
		g->parent.n = link->parent > 0 ? link->parent : g->parent.n;
		g->parent_nap_ms = FIRST_NAP_MS;
	} else if (link && frame.type == PBEAM__CHANNEL_MESSAGE__LINK_SIGNAL && g->keeper >= 0) {
		news.value = link->signal;
		news.from = link->from;
		if (link_news_send(g->keeper, &news, 0) < 0)
			log_debug("vpid %d: its keeper has ended", g->vpid.n);
	}
	message_free(link);
	frame_free(&frame);
}

static void report_status(struct guest *g)
{
	Pbeam__StubLink link = PBEAM__STUB_LINK__INIT;
	struct err err = ERR_INIT;
	bool killed;

	link.vpid = g->vpid.n;
	link.status = g->statuses[0];
	g->reported = true;
	killed = WIFSIGNALED(link.status) &&
		 WTERMSIG(link.status) == SIGKILL; /* its sender does not wait long */
	if (is_end(link.status) &&
	    remote_console_flush(g->job, !killed, &err) < 0) /* its last output comes first */
		log_warn("vpid %d: %s", g->vpid.n, err.text);
	err_clear(&err);
	if (is_end(link.status) && bridge_flush(g->vpid, &err) < 0)
		log_warn("vpid %d: %s", g->vpid.n, err.text);
	if (frame_send(g->channel, PBEAM__CHANNEL_MESSAGE__LINK_STATUS, &link.base, NULL, 0, NULL) < 0)
		close_channel(g);
	else if (is_end(link.status)) /* before the reply: after it the number may be taken again here */
		g->place = record_here(g->vpid.n);
}

void link_guest_main(const struct job *job, struct vpid vpid, const char *host, int keeper)
{
	struct guest g = {.job = job, .vpid = vpid, .keeper = keeper, .channel = -1, .nap_ms = FIRST_NAP_MS};
	struct err err = ERR_INIT;

	snprintf(g.host, sizeof(g.host), "%s", host);
	if (job_cookie(job, g.cookie, &err) < 0) {
		log_error("vpid %d: %s", vpid.n, err.text);
		_exit(1);
	}
	for (;;) {
		struct pollfd polls[2];

		if (g.channel < 0)
			connect_to_stub(&g);
		if (g.channel >= 0 && g.nstatuses && !g.reported)
			report_status(&g);
		if (g.parent.n)
			follow_parent(&g);
		polls[0] = (struct pollfd){.fd = g.keeper, .events = POLLIN};
		polls[1] = (struct pollfd){.fd = g.channel, .events = POLLIN};
		if (poll(polls, 2, g.channel < 0 ? g.nap_ms : g.parent.n ? g.parent_nap_ms : -1) <= 0)
			continue;
		if (polls[0].revents)
			on_keeper_news(&g);
		else if (polls[1].revents)
			on_stub_frame(&g);
	}
}
