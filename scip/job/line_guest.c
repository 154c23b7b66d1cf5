/* The end of a line where the process is. */
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
#include "scip/job/line.h"
#include "scip/job/remote_console.h"
#include "scip/migrate/migrate.h"
#include "scip/rebuild/scip_link.h"

enum {
	WORDS_MAX = 64,
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
	int keeper, channel;	  /* -1: gone */
	int32_t words[WORDS_MAX]; /* statuses to be told, oldest first */
	int nwords;
	bool told;   /* the first one, on this channel */
	bool dialed; /* before: the stub may have moved since, as its parent has */
	int nap_ms;
	int refused;
	int32_t stub;	/* its pid over there, once that is known */
	uint64_t place; /* the version of the registry's entry that says that it is here; 0: none says so */
	struct vpid parent; /* whose child the stub is by now, if the process is still to be told; else 0 */
	int parent_nap_ms;
};

static bool is_end(int status)
{
	return !WIFSTOPPED(status) && !WIFCONTINUED(status);
}

static void append(struct guest *g, int status)
{
	if (g->nwords == WORDS_MAX) /* stops and continuations that nobody has seen */
		memmove(g->words + 1, g->words + 2, (size_t)(--g->nwords - 1) * sizeof(g->words[0]));
	g->words[g->nwords++] = status;
}

static bool has_ended(const struct guest *g)
{
	return g->nwords && is_end(g->words[g->nwords - 1]);
}

static void hang_up(struct guest *g)
{
	close(g->channel);
	g->channel = -1;
	g->told = false;
}

/* The keeper over there has gone, and the stub with it: so goes the process, as it would at home. */
static void lose_stub(struct guest *g)
{
	struct line_word word = {.type = LINE_WORD_SIGNAL, .vpid = g->vpid.n, .value = SIGKILL};

	bool ended = has_ended(g);

	g->nap_ms = REFUSED_NAP_MS;
	if (++g->refused < (ended ? REFUSALS_ENDED : REFUSALS))
		return;
	log_warn("vpid %d: its stub on %s is gone, and so is it", g->vpid.n, g->host);
	if (g->keeper >= 0 && send(g->keeper, &word, sizeof(word), MSG_NOSIGNAL) < 0)
		log_debug("vpid %d: its keeper has left", g->vpid.n);
	_exit(0);
}

/* The process was replaced by a rollback when it had ended; or its stub's keeper has not heard of the
 * rollback yet. */
static void be_refused(struct guest *g)
{
	hang_up(g);
	if (g->keeper < 0 && ++g->refused == REFUSALS) {
		log_info("vpid %d: it was rolled back since: nobody wants to know of its end", g->vpid.n);
		_exit(0);
	}
	nanosleep(&(struct timespec){.tv_nsec = REFUSED_NAP_MS * 1000000L}, NULL);
}

/* Where it is by now. False: the process itself has moved on, and calls from there. */
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

static void dial(struct guest *g)
{
	Pbeam__Line hello = PBEAM__LINE__INIT;
	struct err err = ERR_INIT;

	/* Two lines of one stub would end each other in turn, until our keeper says that it has moved. */
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
	    frame_send(g->channel, PBEAM__CHANNEL_MESSAGE__LINE_HELLO, &hello.base, NULL, 0, &err) < 0)
		hang_up(g);
	if (g->channel >= 0) {
		g->nap_ms = FIRST_NAP_MS;
		return;
	}
	if (strstr(err.text, "nobody expects")) {
		lose_stub(g);
		return;
	}
	log_info("vpid %d: its stub on %s cannot be reached: %s", g->vpid.n, g->host, err.text);
	g->nap_ms = g->nap_ms * 2 < LAST_NAP_MS ? g->nap_ms * 2 : LAST_NAP_MS;
}

static void confirm_signal(struct guest *g)
{
	Pbeam__Line line = PBEAM__LINE__INIT;

	line.vpid = g->vpid.n;
	if (g->channel >= 0 &&
	    frame_send(g->channel, PBEAM__CHANNEL_MESSAGE__LINE_SIGNALLED, &line.base, NULL, 0, NULL) < 0)
		hang_up(g);
}

static void on_keeper(struct guest *g)
{
	struct line_word word;
	ssize_t n = recv(g->keeper, &word, sizeof(word), 0);

	if (n == (ssize_t)sizeof(word)) {
		if (word.type == LINE_WORD_MOVED)
			_exit(0);
		if (word.type == LINE_WORD_STATUS)
			append(g, word.value);
		if (word.type == LINE_WORD_SIGNALLED)
			confirm_signal(g);
		return;
	}
	/* It has left; if it was killed so was the process, unless that has moved on and it could not say so.
	 */
	close(g->keeper);
	g->keeper = -1;
	if (has_ended(g))
		return;
	if (!find_stub(g))
		_exit(0);
	append(g, SIGKILL);
}

/* 0: it need not be told, or has been. */
static int tell_orphan(const struct guest *g, struct err *err)
{
	Pbeam__ScipOrphan orphan = PBEAM__SCIP_ORPHAN__INIT;
	char host[64], stub_host[64], own[64];
	struct name_process process;
	auto_close int sock = -1;
	int r;

	if (g->keeper < 0) /* who has the number now is another, of a rollback */
		return 0;
	if (names_process_get(g->job->names, g->vpid, &process) < 0 || process.state == NAME_STATE_DEAD ||
	    !process.remote_parent || process.parent.n == g->parent.n)
		return 0;
	if (process.state != NAME_STATE_RUNNING)
		return err_set(err, -EBUSY, "somebody is at work on it");
	r = record_own_host(own, err);
	if (r == 0)
		r = record_place(g->vpid.n, host, stub_host, NULL, err);
	if (r < 0)
		return r;
	/* With its parent it may have left the host that says so: what is left there is an orphan as well. */
	if (strcmp(host, own) != 0 || strcmp(stub_host, g->host) != 0)
		return 0;
	sock = scip_link_connect(process.scip, err);
	orphan.parent = g->parent.n;
	return sock < 0 ? sock
			: scip_link_call(sock, PBEAM__SCIP_REQUEST__SCIP_ORPHAN, &orphan.base,
					 &pbeam__scip_done__descriptor, NULL, err);
}

/* Who is just being moved is told where it will be, for there it has another line. */
static void follow_parent(struct guest *g)
{
	struct err err = ERR_INIT;
	int r = tell_orphan(g, &err);

	if (r == 0)
		g->parent.n = 0;
	else
		log_debug("vpid %d: its parent has ended: %s", g->vpid.n, err.text);
	g->parent_nap_ms = g->parent_nap_ms * 2 < LAST_NAP_MS ? g->parent_nap_ms * 2 : LAST_NAP_MS;
}

static void on_channel(struct guest *g)
{
	struct line_word word = {.type = LINE_WORD_SIGNAL, .vpid = g->vpid.n};
	struct frame frame = {0};
	Pbeam__Line *line = NULL;

	if (frame_recv(g->channel, &frame, NULL) <= 0) {
		hang_up(g);
		return;
	}
	line = (void *)frame_unpack(&frame, &pbeam__line__descriptor, NULL);
	if (line && frame.type == PBEAM__CHANNEL_MESSAGE__LINE_DONE && g->told) {
		if (is_end(g->words[0])) {
			if (g->place)
				record_forget_place(g->vpid.n, g->place);
			_exit(0);
		}
		memmove(g->words, g->words + 1, (size_t)--g->nwords * sizeof(g->words[0]));
		g->told = false;
	} else if (line && frame.type == PBEAM__CHANNEL_MESSAGE__LINE_REFUSED) {
		be_refused(g);
	} else if (line && frame.type == PBEAM__CHANNEL_MESSAGE__LINE_PARENT) {
		g->stub = line->stub;
		g->parent.n = line->parent > 0 ? line->parent : g->parent.n;
		g->parent_nap_ms = FIRST_NAP_MS;
	} else if (line && frame.type == PBEAM__CHANNEL_MESSAGE__LINE_SIGNAL && g->keeper >= 0) {
		word.value = line->signal;
		word.from = line->from;
		if (send(g->keeper, &word, sizeof(word), MSG_NOSIGNAL) < 0)
			log_debug("vpid %d: its keeper has left", g->vpid.n);
	}
	message_free(line);
	frame_free(&frame);
}

static void tell(struct guest *g)
{
	Pbeam__Line line = PBEAM__LINE__INIT;
	struct err err = ERR_INIT;
	bool killed;

	line.vpid = g->vpid.n;
	line.status = g->words[0];
	g->told = true;
	killed = WIFSIGNALED(line.status) && WTERMSIG(line.status) == SIGKILL; /* nobody wants to wait long */
	if (is_end(line.status) &&
	    remote_console_flush(g->job, !killed, &err) < 0) /* its last words come first */
		log_warn("vpid %d: %s", g->vpid.n, err.text);
	err_clear(&err);
	if (is_end(line.status) && bridge_flush(g->vpid, &err) < 0)
		log_warn("vpid %d: %s", g->vpid.n, err.text);
	if (frame_send(g->channel, PBEAM__CHANNEL_MESSAGE__LINE_STATUS, &line.base, NULL, 0, NULL) < 0)
		hang_up(g);
	else if (is_end(line.status)) /* before the answer: then the number may be another's here already */
		g->place = record_here(g->vpid.n);
}

void line_guest_main(const struct job *job, struct vpid vpid, const char *host, int keeper)
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
			dial(&g);
		if (g.channel >= 0 && g.nwords && !g.told)
			tell(&g);
		if (g.parent.n)
			follow_parent(&g);
		polls[0] = (struct pollfd){.fd = g.keeper, .events = POLLIN};
		polls[1] = (struct pollfd){.fd = g.channel, .events = POLLIN};
		if (poll(polls, 2, g.channel < 0 ? g.nap_ms : g.parent.n ? g.parent_nap_ms : -1) <= 0)
			continue;
		if (polls[0].revents)
			on_keeper(&g);
		else if (polls[1].revents)
			on_channel(&g);
	}
}
