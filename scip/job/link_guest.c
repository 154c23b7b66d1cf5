/* The ends of links where the processes are. */
#include <errno.h>
#include <event2/event.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "base/cleanup.h"
#include "base/list.h"
#include "base/log.h"
#include "scip/bridge/bridge.h"
#include "scip/job/link_peer.h"
#include "scip/job/link_process.h"
#include "scip/job/link_work.h"
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

/* A process here whose stub is on another host. */
struct link_guest {
	struct link_guest *next;
	struct link_process *process;
	uint64_t id;
	struct vpid vpid;
	char host[CHANNEL_HOST_MAX]; /* of the stub */
	char incarnation[40];	     /* of the job, when the process came here */
	struct link_peer *peer;	     /* the connection that it waits for, or uses; NULL: neither */
	bool attached;		     /* LINK_HELLO was sent, and nothing has ended the link since */
	bool dialed;		     /* before: the stub may have moved since, with its parent */
	bool looking;		     /* its place is being looked up */
	struct event *retry;	     /* to attach */
	unsigned nap_ms;
	int refused;
	int32_t stub; /* its real pid, once that is known */

	int32_t statuses[STATUSES_MAX]; /* to be reported, oldest first */
	int nstatuses;
	bool reported;	/* the first of them, on this link */
	bool flushing;	/* what it wrote is being flushed, before its end is reported ... */
	bool flushed;	/* ... and has been */
	uint64_t place; /* version of the registry's entry that places the process here; 0: none */

	uint64_t received, taken; /* the last signal that came, and that the process has */

	struct vpid parent; /* the stub's new parent, until the process is told; else 0 */
	bool telling;
	struct event *parent_retry;
	unsigned parent_nap_ms;
};

static struct link_guest *guest_find(const struct link_process *process, int32_t vpid)
{
	struct link_guest *g = process->guests;

	while (g && g->vpid.n != vpid)
		g = g->next;
	return g;
}

static struct link_guest *guest_by_id(const struct link_process *process, uint64_t id)
{
	struct link_guest *g = process->guests;

	while (g && g->id != id)
		g = g->next;
	return g;
}

static void guest_free(struct link_guest *g)
{
	struct link_process *process = g->process;

	list_remove(&process->guests, g);
	event_free(g->retry);
	event_free(g->parent_retry);
	free(g);
	link_process_check_end(process);
}

/* Nothing is left to be reported. */
static void guest_end(struct link_guest *g)
{
	Pbeam__LinkNews news = PBEAM__LINK_NEWS__INIT;

	news.vpid = g->vpid.n;
	link_process_tell(g->process, PBEAM__LINK_NEWS_TYPE__LINK_NEWS_GONE, &news);
	guest_free(g);
}

static bool is_end(int status)
{
	return !WIFSTOPPED(status) && !WIFCONTINUED(status);
}

static bool has_ended(const struct link_guest *g)
{
	return g->nstatuses && is_end(g->statuses[g->nstatuses - 1]);
}

static bool keeper_is_gone(const struct link_guest *g)
{
	return g->process->keeper.fd < 0;
}

static void guest_send(const struct link_guest *g, uint32_t type, Pbeam__StubLink *link)
{
	link->vpid = g->vpid.n;
	link_peer_send(g->peer, type, &link->base);
}

/* ---- attaching ---- */

/* Where the process and its stub are. */
struct look {
	struct link_process *process;
	uint64_t id;
	struct vpid vpid;
	bool orphan; /* the keeper has ended, and with it the process, unless that has moved on */
	char host[64], stub_host[64], own[64];
	struct err err;
	int r;
};

static void guest_attach(struct link_guest *g);

static void guest_retry(struct link_guest *g, unsigned ms)
{
	g->attached = g->reported = false;
	g->peer = NULL;
	link_process_timer_start(g->retry, ms);
}

/* The stub's keeper has ended, and the stub with it: the process is killed, as it would be at home. */
static void guest_lose_stub(struct link_guest *g)
{
	Pbeam__LinkNews news = PBEAM__LINK_NEWS__INIT;

	if (++g->refused < (has_ended(g) ? REFUSALS_ENDED : REFUSALS)) {
		guest_retry(g, REFUSED_NAP_MS);
		return;
	}
	log_warn("vpid %d: its stub on %s is gone; it is killed", g->vpid.n, g->host);
	news.vpid = g->vpid.n;
	link_process_tell(g->process, PBEAM__LINK_NEWS_TYPE__LINK_NEWS_KILL, &news);
	guest_end(g);
}

static void guest_greet(struct link_guest *g)
{
	Pbeam__StubLink hello = PBEAM__STUB_LINK__INIT;

	hello.stub = g->stub;
	hello.incarnation = g->incarnation;
	hello.seq = g->taken;
	g->attached = g->dialed = true;
	g->nap_ms = FIRST_NAP_MS;
	guest_send(g, PBEAM__CHANNEL_MESSAGE__LINK_HELLO, &hello);
}

static void guest_connect(struct link_guest *g)
{
	g->dialed = true;
	g->peer = link_peer_want(g->process, g->host);
	if (!g->peer)
		guest_retry(g, LAST_NAP_MS);
	else if (link_peer_is_connected(g->peer))
		link_guest_connected(g->process, g->peer);
}

static void look_up_place(void *arg)
{
	struct look *look = arg;

	look->r = record_place(look->vpid.n, look->host, look->stub_host, NULL, &look->err);
	if (look->host[0] && record_own_host(look->own, &look->err) < 0)
		look->own[0] = 0;
}

static void guest_add_status(struct link_guest *g, int status)
{
	if (g->nstatuses == STATUSES_MAX) /* drops stops and continuations that were not reported */
		memmove(g->statuses + 1, g->statuses + 2,
			(size_t)(--g->nstatuses - 1) * sizeof(g->statuses[0]));
	g->statuses[g->nstatuses++] = status;
}

static void guest_report(struct link_guest *g);

static void on_looked_up(void *arg)
{
	auto_free struct look *look = arg;
	struct link_guest *g = guest_by_id(look->process, look->id);
	const bool moved_on = look->host[0] && look->own[0] && strcmp(look->host, look->own) != 0;

	if (!g)
		return;
	g->looking = false;
	if (look->r < 0)
		log_info("vpid %d: where its stub is: %s", g->vpid.n, look->err.text);
	if (moved_on && keeper_is_gone(g)) {
		guest_end(g);
		return;
	}
	if (look->orphan) {
		guest_add_status(g, SIGKILL);
		if (g->attached)
			guest_report(g);
		else
			guest_connect(g);
		return;
	}
	/* Two links of one stub would end each other in turn until this keeper reports the move. */
	if (moved_on) {
		guest_retry(g, REFUSED_NAP_MS);
		return;
	}
	if (look->stub_host[0] && strcmp(look->stub_host, g->host) != 0) {
		log_info("vpid %d: its stub has moved from %s to %s", g->vpid.n, g->host, look->stub_host);
		snprintf(g->host, sizeof(g->host), "%s", look->stub_host);
		g->refused = g->stub = 0;
		g->received = g->taken = 0; /* its keeper counts for itself */
	}
	guest_connect(g);
}

static void guest_look(struct link_guest *g, bool orphan)
{
	struct look *look = calloc(1, sizeof(*look));

	if (!look) {
		guest_retry(g, LAST_NAP_MS);
		return;
	}
	g->looking = true;
	*look = (struct look){.process = g->process, .id = g->id, .vpid = g->vpid, .orphan = orphan};
	link_work_start(look_up_place, on_looked_up, look);
}

static void guest_attach(struct link_guest *g)
{
	if (g->looking || g->attached)
		return;
	if (g->dialed)
		guest_look(g, false);
	else
		guest_connect(g);
}

static void on_guest_retry(int fd, short events, void *arg)
{
	guest_attach(arg);
}

void link_guest_connected(struct link_process *process, struct link_peer *peer)
{
	for (struct link_guest *g = process->guests; g; g = g->next)
		if (g->peer == peer && !g->attached) {
			guest_greet(g);
			guest_report(g);
		}
}

void link_guest_unconnected(struct link_process *process, const struct link_peer *peer, int r)
{
	struct link_guest *next;

	for (struct link_guest *g = process->guests; g; g = next) {
		next = g->next;
		if (g->peer != peer)
			continue;
		if (r == -EADDRNOTAVAIL) {
			guest_lose_stub(g);
			continue;
		}
		guest_retry(g, r < 0 ? g->nap_ms : 0);
		if (r < 0)
			g->nap_ms = g->nap_ms * 2 < LAST_NAP_MS ? g->nap_ms * 2 : LAST_NAP_MS;
	}
}

/* Either a rollback has replaced the process after its end, or the stub's keeper does not know of the
 * rollback yet. */
static void guest_take_refusal(struct link_guest *g)
{
	if (keeper_is_gone(g) && ++g->refused == REFUSALS) {
		log_info("vpid %d: it was rolled back since; its end is not reported", g->vpid.n);
		guest_end(g);
		return;
	}
	guest_retry(g, REFUSED_NAP_MS);
}

/* ---- state changes ---- */

struct flush {
	struct link_process *process;
	uint64_t id, place;
	struct vpid vpid;
	bool killed; /* the process was, and the sender of the signal does not wait long */
};

/* Before the report: when it is confirmed the number may be taken again here. */
static void guest_write_out(void *arg)
{
	struct flush *flush = arg;
	struct err err = ERR_INIT;

	if (remote_console_flush(flush->process->job, !flush->killed, &err) < 0)
		log_warn("vpid %d: %s", flush->vpid.n, err.text);
	err_clear(&err);
	if (bridge_flush(flush->vpid, &err) < 0)
		log_warn("vpid %d: %s", flush->vpid.n, err.text);
	flush->place = record_here(flush->vpid.n);
}

static void on_flushed(void *arg)
{
	auto_free struct flush *flush = arg;
	struct link_guest *g = guest_by_id(flush->process, flush->id);

	if (!g)
		return;
	g->flushing = false;
	g->flushed = true;
	g->place = flush->place;
	guest_report(g);
}

/* Its last output comes before its end. */
static bool guest_flush(struct link_guest *g)
{
	struct flush *flush;

	if (g->flushed || g->flushing)
		return g->flushed;
	flush = calloc(1, sizeof(*flush));
	if (!flush)
		return true;
	g->flushing = true;
	*flush = (struct flush){.process = g->process,
				.id = g->id,
				.vpid = g->vpid,
				.killed = WIFSIGNALED(g->statuses[0]) && WTERMSIG(g->statuses[0]) == SIGKILL};
	link_work_start(guest_write_out, on_flushed, flush);
	return false;
}

/* Reports the oldest state change. The next one follows when the stub has done the same. */
static void guest_report(struct link_guest *g)
{
	Pbeam__StubLink link = PBEAM__STUB_LINK__INIT;

	if (!g->attached || !g->nstatuses || g->reported)
		return;
	if (is_end(g->statuses[0]) && !guest_flush(g))
		return;
	link.status = g->statuses[0];
	g->reported = true;
	guest_send(g, PBEAM__CHANNEL_MESSAGE__LINK_STATUS, &link);
}

static void forget_place(void *arg)
{
	const struct flush *flush = arg;

	if (flush->place)
		record_forget_place(flush->vpid.n, flush->place);
}

static void on_place_forgotten(void *arg)
{
	auto_free struct flush *flush = arg;
	struct link_guest *g = guest_by_id(flush->process, flush->id);

	if (g)
		guest_end(g);
}

static void guest_confirm_status(struct link_guest *g)
{
	struct flush *flush;

	if (!g->reported)
		return;
	if (!is_end(g->statuses[0])) {
		memmove(g->statuses, g->statuses + 1, (size_t)--g->nstatuses * sizeof(g->statuses[0]));
		g->reported = false;
		guest_report(g);
		return;
	}
	flush = calloc(1, sizeof(*flush));
	if (!flush) {
		guest_end(g);
		return;
	}
	*flush = (struct flush){.process = g->process, .id = g->id, .vpid = g->vpid, .place = g->place};
	link_work_start(forget_place, on_place_forgotten, flush);
}

/* ---- the parent ---- */

struct parent_change {
	struct link_process *process;
	uint64_t id;
	struct vpid vpid, parent;
	char stub_host[CHANNEL_HOST_MAX];
	struct err err;
	int r;
};

/* Tells the process that its parent is another one. 0: it has, or need not be told. */
static int change_parent(const struct parent_change *change, struct err *err)
{
	struct names *names = change->process->job->names;
	Pbeam__ScipOrphan orphan = PBEAM__SCIP_ORPHAN__INIT;
	char host[64], stub_host[64], own[64];
	struct name_process process;
	auto_close int sock = -1;
	int r;

	if (names_process_get(names, change->vpid, &process) < 0 || process.state == NAME_STATE_DEAD ||
	    !process.remote_parent || process.parent.n == change->parent.n)
		return 0;
	if (process.keeper.n != change->process->job->entry.keeper.n) /* a rollback made it */
		return 0;
	if (process.state != NAME_STATE_RUNNING)
		return err_set(err, -EBUSY, "it is being checkpointed, rolled back or migrated");
	r = record_own_host(own, err);
	if (r < 0)
		return r;
	r = record_place(change->vpid.n, host, stub_host, NULL, err);
	if (r < 0)
		return r;
	/* The stub may have left that host with its parent: what remains there is an orphan as well. */
	if (strcmp(host, own) != 0 || strcmp(stub_host, change->stub_host) != 0)
		return 0;
	sock = scip_link_connect(process.scip, err);
	orphan.parent = change->parent.n;
	return sock < 0 ? sock
			: scip_link_call(sock, PBEAM__SCIP_REQUEST__SCIP_ORPHAN, &orphan.base,
					 &pbeam__scip_done__descriptor, NULL, err);
}

static void tell_parent(void *arg)
{
	struct parent_change *change = arg;

	change->r = change_parent(change, &change->err);
}

/* A process that is being migrated is told at its next host, where it has another link. */
static void on_parent_told(void *arg)
{
	auto_free struct parent_change *change = arg;
	struct link_guest *g = guest_by_id(change->process, change->id);

	if (!g)
		return;
	g->telling = false;
	if (change->r == 0 && g->parent.n == change->parent.n)
		g->parent.n = 0;
	else if (change->r < 0)
		log_debug("vpid %d: it is not told yet that its parent has ended: %s", g->vpid.n,
			  change->err.text);
	if (!g->parent.n)
		return;
	g->parent_nap_ms = g->parent_nap_ms * 2 < LAST_NAP_MS ? g->parent_nap_ms * 2 : LAST_NAP_MS;
	link_process_timer_start(g->parent_retry, g->parent_nap_ms);
}

static void on_parent_retry(int fd, short events, void *arg)
{
	struct link_guest *g = arg;
	struct parent_change *change;

	if (g->telling || !g->parent.n || keeper_is_gone(g))
		return;
	change = calloc(1, sizeof(*change));
	if (!change) {
		link_process_timer_start(g->parent_retry, LAST_NAP_MS);
		return;
	}
	*change = (struct parent_change){
		.process = g->process, .id = g->id, .vpid = g->vpid, .parent = g->parent};
	snprintf(change->stub_host, sizeof(change->stub_host), "%s", g->host);
	g->telling = true;
	link_work_start(tell_parent, on_parent_told, change);
}

static void guest_take_parent(struct link_guest *g, const Pbeam__StubLink *link)
{
	g->stub = link->stub;
	if (link->parent <= 0)
		return;
	g->parent.n = link->parent;
	g->parent_nap_ms = FIRST_NAP_MS;
	on_parent_retry(-1, 0, g);
}

/* ---- signals ---- */

static void guest_confirm_signals(struct link_guest *g)
{
	Pbeam__StubLink link = PBEAM__STUB_LINK__INIT;

	link.seq = g->taken;
	if (g->attached)
		guest_send(g, PBEAM__CHANNEL_MESSAGE__LINK_SIGNALLED, &link);
}

/* One that came before is not delivered again: its confirmation was lost, or is to come. */
static void guest_take_signal(struct link_guest *g, const Pbeam__StubLink *link)
{
	Pbeam__LinkNews news = PBEAM__LINK_NEWS__INIT;

	if (link->seq && link->seq <= g->received) {
		if (link->seq <= g->taken)
			guest_confirm_signals(g);
		return;
	}
	if (link->seq)
		g->received = link->seq;
	news.vpid = g->vpid.n;
	news.value = link->signal;
	news.from = link->from;
	news.seq = link->seq;
	link_process_tell(g->process, PBEAM__LINK_NEWS_TYPE__LINK_NEWS_SIGNAL, &news);
}

/* ---- from the stub's host, and from the keeper ---- */

void link_guest_frame(struct link_process *process, uint32_t type, const Pbeam__StubLink *link)
{
	struct link_guest *g = guest_find(process, link->vpid);

	if (!g || !g->attached)
		return;
	switch (type) {
	case PBEAM__CHANNEL_MESSAGE__LINK_DONE:
		guest_confirm_status(g);
		break;
	case PBEAM__CHANNEL_MESSAGE__LINK_REFUSED:
		guest_take_refusal(g);
		break;
	case PBEAM__CHANNEL_MESSAGE__LINK_CLOSE:
		guest_retry(g, FIRST_NAP_MS);
		break;
	case PBEAM__CHANNEL_MESSAGE__LINK_PARENT:
		guest_take_parent(g, link);
		break;
	case PBEAM__CHANNEL_MESSAGE__LINK_SIGNAL:
		guest_take_signal(g, link);
		break;
	default:
		break;
	}
}

static void guest_new(struct link_process *process, const Pbeam__LinkNews *news)
{
	struct link_guest *g = calloc(1, sizeof(*g));

	if (!g) {
		log_error("vpid %d: it has no link to its stub: no memory", news->vpid);
		return;
	}
	*g = (struct link_guest){.process = process,
				 .id = ++process->last_id,
				 .vpid = {news->vpid},
				 .nap_ms = FIRST_NAP_MS,
				 .next = process->guests};
	g->retry = link_process_timer(process, on_guest_retry, g);
	g->parent_retry = link_process_timer(process, on_parent_retry, g);
	snprintf(g->host, sizeof(g->host), "%s", news->text);
	snprintf(g->incarnation, sizeof(g->incarnation), "%s", process->job->incarnation);
	process->guests = g;
	guest_attach(g);
}

void link_guest_news(struct link_process *process, uint32_t type, const Pbeam__LinkNews *news)
{
	Pbeam__StubLink link = PBEAM__STUB_LINK__INIT;
	struct link_guest *g = guest_find(process, news->vpid);

	if (type == PBEAM__LINK_NEWS_TYPE__LINK_NEWS_GUEST) {
		if (g)
			guest_free(g);
		guest_new(process, news);
		return;
	}
	if (!g)
		return;
	switch (type) {
	case PBEAM__LINK_NEWS_TYPE__LINK_NEWS_STATUS:
		guest_add_status(g, news->value);
		guest_report(g);
		break;
	case PBEAM__LINK_NEWS_TYPE__LINK_NEWS_TAKEN:
		if (news->seq > g->taken)
			g->taken = news->seq;
		if (g->taken > g->received)
			g->received = g->taken;
		guest_confirm_signals(g);
		break;
	case PBEAM__LINK_NEWS_TYPE__LINK_NEWS_FORGET:
		if (g->attached)
			guest_send(g, PBEAM__CHANNEL_MESSAGE__LINK_CLOSE, &link);
		guest_free(g);
		break;
	default:
		break;
	}
}

void link_guest_orphan(struct link_process *process)
{
	struct link_guest *next;

	for (struct link_guest *g = process->guests; g; g = next) {
		next = g->next;
		if (!has_ended(g))
			guest_look(g, true);
	}
}
