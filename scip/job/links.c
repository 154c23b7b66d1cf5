#include "scip/job/links.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "base/list.h"
#include "base/log.h"
#include "proto/keeper.pb-c.h"
#include "proto/message.h"
#include "proto/stream.h"
#include "scip/job/link_process.h"
#include "scip/job/remote_console.h"
#include "scip/job/remote_console_positions.h"

enum { SIGNALS_MAX = 256, KEPT_MAX = 16, AGAIN_NS = 200000000 };

/* A process here whose stub is on another host. */
struct guest {
	struct guest *next;
	struct vpid vpid;
	pid_t rpid;	      /* 0: it has ended */
	char host[64];	      /* of the stub */
	char incarnation[40]; /* the job's when the process came */
	bool waits;	      /* `status` is reported when the coordinator has ended */
	bool reported;	      /* `status` was */
	int status;
	struct {
		int signal;
		uint64_t seq;
	} kept[KEPT_MAX]; /* signals that came while the process may have been migrating */
	int nkept;
	uint64_t taken; /* the last signal that it has */
};

/* A signal for a process elsewhere that is not known to have reached it. */
struct sent_signal {
	struct vpid vpid;
	int signal, from;
	int32_t stub; /* the stub's pid, 0 if unknown */
	uint64_t seq;
};

/* A stub here whose process has a link. */
struct stub_link {
	struct stub_link *next;
	struct vpid vpid;
};

struct links {
	struct job *job;
	pid_t pid;	       /* of the process that carries them, 0 */
	struct stream carrier; /* to it; fd -1: none */
	bool expects, console; /* what it was told to do */
	struct guest *guests;
	struct stub_link *stubs;
	struct sent_signal signals[SIGNALS_MAX]; /* oldest first */
	int nsignals;
	uint64_t seq;	     /* of the last one: a time to begin with, so that it grows over keepers */
	struct vpid awaited; /* the process that was made last, which may be arriving ... */
	pid_t awaited_rpid;
	bool early; /* ... and changed to `early_status` before it had a link */
	int early_status;
};

static struct links *links_of(struct job *job)
{
	if (!job->links) {
		job->links = calloc(1, sizeof(*job->links));
		if (job->links)
			*job->links = (struct links){
				.job = job, .carrier.fd = -1, .seq = io_now_ns(CLOCK_REALTIME)};
	}
	return job->links;
}

static struct guest *links_find_guest(const struct job *job, struct vpid vpid)
{
	struct guest *guest = job->links ? job->links->guests : NULL;

	while (guest && guest->vpid.n != vpid.n)
		guest = guest->next;
	return guest;
}

static bool links_has_stub(const struct job *job, struct vpid vpid)
{
	const struct stub_link *stub = job->links ? job->links->stubs : NULL;

	while (stub && stub->vpid.n != vpid.n)
		stub = stub->next;
	return stub;
}

/* At once: this keeper may be about to exit. What is lost because no process carries it is sent again to the
 * next one. */
static void links_send(struct links *links, enum _Pbeam__LinkNewsType type, const Pbeam__LinkNews *news)
{
	if (links->carrier.fd < 0)
		return;
	if (stream_send(&links->carrier, type, &news->base, NULL, 0) < 0)
		log_error("vpid %d: its link is not told of a change", news->vpid);
	stream_flush(&links->carrier);
}

static void links_tell(struct links *links, enum _Pbeam__LinkNewsType type, struct vpid vpid, int value,
		       const char *text)
{
	Pbeam__LinkNews news = PBEAM__LINK_NEWS__INIT;

	news.vpid = vpid.n;
	news.value = value;
	news.text = (char *)(uintptr_t)text;
	links_send(links, type, &news);
}

/* ---- signals for processes elsewhere ---- */

int links_under_way(const struct job *job)
{
	return job->links ? job->links->nsignals : 0;
}

/* A process that returns home does so into its stub. Another process with its number was made by a rollback,
 * which may be given up as long as the stub exists. */
static bool is_replaced(const struct job *job, struct vpid vpid, int32_t stub)
{
	struct name_process process;

	return stub && names_process_get_real(job->names, vpid, (struct rpid){stub}, &process) < 0 &&
	       names_process_get(job->names, vpid, &process) == 0;
}

static bool is_running(const struct job *job, struct vpid vpid, struct name_process *process)
{
	return names_process_get(job->names, vpid, process) == 0 && process->state == NAME_STATE_RUNNING;
}

static void transmit_signal(struct links *links, const struct sent_signal *signal)
{
	Pbeam__LinkNews news = PBEAM__LINK_NEWS__INIT;

	news.vpid = signal->vpid.n;
	news.value = signal->signal;
	news.from = signal->from;
	news.seq = signal->seq;
	links_send(links, PBEAM__LINK_NEWS_TYPE__LINK_NEWS_SIGNAL, &news);
}

/* Drops the signals of a process up to `seq`. */
static void links_drop_signals(struct links *links, struct vpid vpid, uint64_t seq)
{
	int n = 0;

	for (int i = 0; i < links->nsignals; i++)
		if (links->signals[i].vpid.n != vpid.n || links->signals[i].seq > seq)
			links->signals[n++] = links->signals[i];
	links->nsignals = n;
}

/* Delivers the signals of processes that have no link and have returned home meanwhile. vpid 0: of all. */
static void links_deliver_signals(struct links *links, struct vpid vpid)
{
	struct name_process process;
	int n = 0;

	for (int i = 0; i < links->nsignals; i++) {
		const struct sent_signal *signal = &links->signals[i];
		const bool due =
			(!vpid.n || vpid.n == signal->vpid.n) && !links_has_stub(links->job, signal->vpid);

		if (due && is_replaced(links->job, signal->vpid, signal->stub))
			log_info("vpid %d: signal %d was for the process that is rolled back", signal->vpid.n,
				 signal->signal);
		else if (due && is_running(links->job, signal->vpid, &process))
			(void)!kill(process.rpid.n, signal->signal);
		else
			links->signals[n++] = *signal;
	}
	links->nsignals = n;
}

/* Sends a signal to where the process of the stub is, or keeps it until its link is there. The end of a stub
 * that a rollback replaces may be reported only when the new process is there. */
void links_signal(struct job *job, const Pbeam__RemoteSignal *remote)
{
	struct links *links = links_of(job);
	struct sent_signal *signal;

	if (!links || links->nsignals == SIGNALS_MAX) {
		log_warn("vpid %d: signal %d is lost", remote->vpid, remote->signal);
		return;
	}
	signal = &links->signals[links->nsignals++];
	*signal = (struct sent_signal){.vpid = {remote->vpid},
				       .signal = remote->signal,
				       .from = remote->from,
				       .stub = remote->stub,
				       .seq = ++links->seq};
	if (links_has_stub(job, signal->vpid) && !is_replaced(job, signal->vpid, signal->stub))
		transmit_signal(links, signal);
	else
		links_deliver_signals(links, signal->vpid);
}

/* The stub of the job's first process was killed: so is the process where it is now. */
static void tell_killed(const struct job *job, int signal)
{
	if (links_has_stub(job, job->entry.root))
		links_tell(job->links, PBEAM__LINK_NEWS_TYPE__LINK_NEWS_SIGNAL, job->entry.root, signal, "");
}

/* ---- news of stubs here ---- */

static void links_forget_stub(struct links *links, struct vpid vpid)
{
	for (struct stub_link **at = &links->stubs; *at; at = &(*at)->next)
		if ((*at)->vpid.n == vpid.n) {
			struct stub_link *stub = *at;

			*at = stub->next;
			free(stub);
			return;
		}
}

static void links_take_hello(struct links *links, const Pbeam__LinkNews *news)
{
	const struct vpid vpid = {news->vpid};
	struct name_process process;
	struct stub_link *stub;

	/* If the process with the number runs here, the other one is one that a rollback has replaced, and
	 * does not know it if its connection broke just then. A stub with another pid proves nothing: it may
	 * have been away with its parent, and be back. */
	if (is_replaced(links->job, vpid, news->stub) && is_running(links->job, vpid, &process)) {
		links_tell(links, PBEAM__LINK_NEWS_TYPE__LINK_NEWS_SIGNAL, vpid, SIGKILL, "");
		return;
	}
	links_forget_stub(links, vpid);
	stub = calloc(1, sizeof(*stub));
	if (!stub)
		return;
	*stub = (struct stub_link){.next = links->stubs, .vpid = vpid};
	links->stubs = stub;
	links_drop_signals(links, vpid, news->seq);
	for (int i = 0; i < links->nsignals; i++)
		if (links->signals[i].vpid.n == vpid.n &&
		    !is_replaced(links->job, vpid, links->signals[i].stub))
			transmit_signal(links, &links->signals[i]);
}

/* ---- news of processes here ---- */

/* Sends a signal to the process of a link. A process that is dumped already would not take it along: then the
 * next host gets it. */
static void guest_deliver_signal(struct guest *guest, struct links *links, int signal, uint64_t seq)
{
	Pbeam__LinkNews news = PBEAM__LINK_NEWS__INIT;

	if (links->job->departing && guest->nkept < KEPT_MAX) {
		guest->kept[guest->nkept].signal = signal;
		guest->kept[guest->nkept++].seq = seq;
		return;
	}
	if (guest->rpid > 0 && !guest->waits && kill(guest->rpid, signal) < 0)
		log_info("vpid %d: signal %d came after its end", guest->vpid.n, signal);
	if (seq > guest->taken)
		guest->taken = seq;
	news.vpid = guest->vpid.n;
	news.seq = seq;
	links_send(links, PBEAM__LINK_NEWS_TYPE__LINK_NEWS_TAKEN, &news);
}

static void guest_deliver_kept(struct guest *guest, struct links *links)
{
	int n = guest->nkept;

	guest->nkept = 0;
	for (int i = 0; i < n; i++)
		guest_deliver_signal(guest, links, guest->kept[i].signal, guest->kept[i].seq);
}

static void links_free_guest(struct links *links, struct guest *guest)
{
	list_remove(&links->guests, guest);
	free(guest);
}

static void links_forget_guest(struct links *links, struct guest *guest)
{
	links_tell(links, PBEAM__LINK_NEWS_TYPE__LINK_NEWS_FORGET, guest->vpid, 0, "");
	links_free_guest(links, guest);
}

/* ---- the process that carries them ---- */

static void on_news(struct stream *stream, struct frame *frame)
{
	struct links *links = stream->owner;
	Pbeam__LinkNews *news = (void *)frame_unpack(frame, &pbeam__link_news__descriptor, NULL);
	struct guest *guest = news ? links_find_guest(links->job, (struct vpid){news->vpid}) : NULL;

	if (!news)
		return;
	switch (frame->type) {
	case PBEAM__LINK_NEWS_TYPE__LINK_NEWS_HELLO:
		links_take_hello(links, news);
		break;
	case PBEAM__LINK_NEWS_TYPE__LINK_NEWS_CLOSED:
		links_forget_stub(links, (struct vpid){news->vpid});
		links_deliver_signals(links, (struct vpid){news->vpid});
		break;
	case PBEAM__LINK_NEWS_TYPE__LINK_NEWS_CONFIRMED:
		links_drop_signals(links, (struct vpid){news->vpid}, news->seq);
		break;
	case PBEAM__LINK_NEWS_TYPE__LINK_NEWS_SIGNAL:
		if (guest)
			guest_deliver_signal(guest, links, news->value, news->seq);
		break;
	case PBEAM__LINK_NEWS_TYPE__LINK_NEWS_KILL:
		if (guest)
			guest_deliver_signal(guest, links, SIGKILL, 0);
		break;
	case PBEAM__LINK_NEWS_TYPE__LINK_NEWS_STREAM_CLOSED:
		remote_console_close(links->job, news->value);
		break;
	case PBEAM__LINK_NEWS_TYPE__LINK_NEWS_GONE:
		if (guest)
			links_free_guest(links, guest);
		break;
	default:
		break;
	}
	message_free(news);
}

static int start_carrier(struct links *links, struct err *err);

static void start_again(void *arg)
{
	struct links *links = arg;
	struct err err = ERR_INIT;

	if (links->carrier.fd >= 0 || start_carrier(links, &err) == 0)
		return;
	log_error("job %s: %s", links->job->entry.uuid, err.text);
	if (loop_timer_start(&links->job->loop, AGAIN_NS, start_again, links) < 0)
		log_error("job %s: its links are cut", links->job->entry.uuid);
}

static void close_carrier(struct links *links)
{
	stream_close(&links->carrier);
	links->job->links_sock = -1;
	while (links->stubs)
		links_forget_stub(links, links->stubs->vpid);
}

/* It was killed. */
static void on_carrier_end(struct stream *stream, const struct err *err)
{
	struct links *links = stream->owner;

	close_carrier(links);
	start_again(links);
}

/* In the new process: closes what it does not need. Of the console it keeps what it carries: at home the
 * streams, at a guest's their other ends. */
_Noreturn static void become_carrier(struct job *job, int sock)
{
	const int master = job->pty_master;
	int console[3], ends[3];

	memcpy(console, job->console, sizeof(console));
	memcpy(ends, job->console_ends, sizeof(ends));
	for (int i = 0; i < 3; i++) {
		job->console[i] = job->home ? job->console[i] : -1;
		job->console_ends[i] = -1;
	}
	job->pty_master = job->home ? -1 : master;
	job_close_private(job);
	if (!job->home)
		memcpy(job->console, console, sizeof(console));
	memcpy(job->console_ends, ends, sizeof(ends));
	job->pty_master = job->home ? master : -1;
	link_process_main(job, sock);
}

/* Repeats what the process before knew. */
static void brief_carrier(struct links *links)
{
	Pbeam__LinkNews taken = PBEAM__LINK_NEWS__INIT;
	struct job *job = links->job;

	if (links->expects)
		links_tell(links, PBEAM__LINK_NEWS_TYPE__LINK_NEWS_EXPECT, (struct vpid){0}, 0, "");
	for (const struct guest *guest = links->guests; guest; guest = guest->next) {
		links_tell(links, PBEAM__LINK_NEWS_TYPE__LINK_NEWS_RESET, (struct vpid){0}, 0,
			   guest->incarnation);
		links_tell(links, PBEAM__LINK_NEWS_TYPE__LINK_NEWS_GUEST, guest->vpid, 0, guest->host);
		taken.vpid = guest->vpid.n;
		taken.seq = guest->taken;
		links_send(links, PBEAM__LINK_NEWS_TYPE__LINK_NEWS_TAKEN, &taken);
		if (guest->reported)
			links_tell(links, PBEAM__LINK_NEWS_TYPE__LINK_NEWS_STATUS, guest->vpid, guest->status,
				   "");
	}
	links_tell(links, PBEAM__LINK_NEWS_TYPE__LINK_NEWS_RESET, (struct vpid){0}, 0, job->incarnation);
	if (links->console)
		links_tell(links, PBEAM__LINK_NEWS_TYPE__LINK_NEWS_CONSOLE, (struct vpid){0}, 0, "");
}

static int start_carrier(struct links *links, struct err *err)
{
	static const struct stream_calls calls = {.frame = on_news, .end = on_carrier_end};
	struct job *job = links->job;
	int pair[2], r = 0;

	if (job->home)
		r = remote_console_prepare(job, err);
	if (r >= 0)
		r = remote_console_make_positions(job, err);
	if (r < 0)
		return r;
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
		return err_sys(err, "make a link");
	links->pid = fork();
	if (links->pid == 0) {
		close(pair[0]);
		become_carrier(job, pair[1]);
	}
	close(pair[1]);
	if (links->pid < 0) {
		links->pid = 0;
		close(pair[0]);
		return err_sys(err, "make a link");
	}
	r = stream_open(&links->carrier, job->loop.base, pair[0], &calls, links);
	if (r < 0) {
		links->carrier.fd = -1;
		return err_code(err, r, "watch the job's links");
	}
	job->links_sock = pair[0];
	brief_carrier(links);
	return 0;
}

static int need_carrier(struct job *job, struct err *err)
{
	struct links *links = links_of(job);

	if (!links)
		return err_code(err, -ENOMEM, "make a link");
	return links->carrier.fd >= 0 ? 0 : start_carrier(links, err);
}

void links_restart(struct job *job)
{
	struct links *links = job->links;

	if (!links || links->carrier.fd < 0)
		return;
	kill(links->pid, SIGKILL);
	links->console = false;
	close_carrier(links);
	start_again(links);
}

bool links_reaped(struct job *job, pid_t pid)
{
	return job->links && pid == job->links->pid; /* its socket reports it */
}

int links_expect(struct job *job, struct err *err)
{
	struct links *links = links_of(job);
	int r;

	if (!links)
		return err_code(err, -ENOMEM, "make a link");
	if (links->expects)
		return 0;
	links->expects = true;
	r = need_carrier(job, err);
	if (r < 0)
		return r;
	links->expects = true;
	links_tell(links, PBEAM__LINK_NEWS_TYPE__LINK_NEWS_EXPECT, (struct vpid){0}, 0, "");
	return 0;
}

void links_await(struct job *job, struct vpid vpid, pid_t rpid)
{
	struct links *links = links_of(job);

	if (!links)
		return; /* nor will it have a link */
	links->awaited = vpid;
	links->awaited_rpid = rpid;
	links->early = false;
}

static void guest_report_status(struct guest *guest, struct links *links)
{
	guest->waits = false;
	guest->reported = true;
	links_tell(links, PBEAM__LINK_NEWS_TYPE__LINK_NEWS_STATUS, guest->vpid, guest->status, "");
	if (!WIFSTOPPED(guest->status) && !WIFCONTINUED(guest->status))
		guest->rpid = 0;
}

int links_to_stub(struct job *job, struct vpid vpid, pid_t rpid, const char *host, struct err *err)
{
	struct guest *guest = links_find_guest(job, vpid);
	int r = need_carrier(job, err);

	if (r < 0)
		return r;
	if (guest)
		links_free_guest(job->links, guest);
	guest = calloc(1, sizeof(*guest));
	if (!guest)
		return err_code(err, -ENOMEM, "make a link");
	*guest = (struct guest){.next = job->links->guests, .vpid = vpid, .rpid = rpid};
	job->links->guests = guest;
	snprintf(guest->host, sizeof(guest->host), "%s", host);
	snprintf(guest->incarnation, sizeof(guest->incarnation), "%s", job->incarnation);
	links_tell(job->links, PBEAM__LINK_NEWS_TYPE__LINK_NEWS_RESET, (struct vpid){0}, 0, job->incarnation);
	links_tell(job->links, PBEAM__LINK_NEWS_TYPE__LINK_NEWS_GUEST, vpid, 0, host);
	if (job->links->early && job->links->awaited.n == vpid.n) {
		guest->status = job->links->early_status;
		guest_report_status(guest, job->links);
	}
	return 0;
}

int links_start_console(struct job *job, struct err *err)
{
	int r;

	if (!job->remote_console)
		return 0;
	r = need_carrier(job, err);
	if (r < 0)
		return r;
	job->links->console = true;
	links_tell(job->links, PBEAM__LINK_NEWS_TYPE__LINK_NEWS_CONSOLE, (struct vpid){0}, 0, "");
	return 0;
}

void links_end_consoles(const struct job *job, struct vpid vpid)
{
	if (job->home || !job->links || job->links->pid <= 0 || !job->console_positions)
		return;
	console_positions_end(job->console_positions, vpid.n, job->links->pid);
}

/* ---- state changes, as the keeper sees them ---- */

const char *links_stub_host(const struct job *job, struct vpid vpid)
{
	const struct guest *guest = links_find_guest(job, vpid);

	return guest ? guest->host : "";
}

void links_renew(struct job *job, struct vpid vpid, pid_t rpid)
{
	struct guest *guest = links_find_guest(job, vpid);

	if (!guest)
		return;
	guest->rpid = rpid;
	guest->waits = guest->reported = false;
}

/* The stub of the job's first process is with its console, in no part. */
static bool keeps_link(const struct job *job, const Pbeam__CutImageName *part, struct vpid vpid)
{
	if (!part->ends && vpid.n == job->entry.root.n)
		return true;
	for (size_t i = 0; i < part->n_guests; i++)
		if (part->guests[i]->vpid == vpid.n)
			return true;
	return false;
}

static void reset_guests(struct job *job, const Pbeam__CutImageName *part)
{
	struct guest *next;

	for (struct guest *guest = job->links ? job->links->guests : NULL; guest; guest = next) {
		next = guest->next;
		if (!keeps_link(job, part, guest->vpid))
			links_forget_guest(job->links, guest);
	}
	for (size_t i = 0; i < part->n_guests; i++) {
		struct vpid vpid = {part->guests[i]->vpid};
		struct guest *guest = links_find_guest(job, vpid);
		pid_t rpid = names_real(job->names, vpid).n;
		struct err err = ERR_INIT;

		if (guest && guest->rpid == rpid && !strcmp(guest->incarnation, job->incarnation))
			continue;
		if (guest)
			links_forget_guest(job->links, guest);
		if (links_to_stub(job, vpid, rpid, part->guests[i]->host, &err) < 0)
			log_error("vpid %d: %s", vpid.n, err.text);
	}
}

void links_reset(struct job *job, const char *incarnation, const Pbeam__CutImageName *part)
{
	if (strcmp(job->incarnation, incarnation) != 0 && job->links) {
		job->links->nsignals = 0;
		links_tell(job->links, PBEAM__LINK_NEWS_TYPE__LINK_NEWS_RESET, (struct vpid){0}, 0,
			   incarnation);
	}
	snprintf(job->incarnation, sizeof(job->incarnation), "%s", incarnation);
	reset_guests(job, part);
}

void links_child(struct job *job, pid_t rpid, int status)
{
	struct links *links = job->links;

	if (rpid == job->root && WIFSIGNALED(status))
		tell_killed(job, WTERMSIG(status));
	for (struct guest *guest = links ? links->guests : NULL; guest; guest = guest->next) {
		if (guest->rpid != rpid)
			continue;
		guest->status = status;
		guest->waits = true;
		if (!job->coordinator)
			guest_report_status(guest, links);
		return;
	}
	/* A new process runs before its coordinator has ended, and may end first. */
	if (links && links->awaited_rpid == rpid) {
		links->early = true;
		links->early_status = status;
	}
}

/* A stub whose process has a link is not here any more. */
static void drop_moved_stubs(struct links *links)
{
	struct name_process process;

	for (const struct stub_link *stub = links->stubs; stub; stub = stub->next)
		if (names_process_get(links->job->names, stub->vpid, &process) < 0 ||
		    process.state == NAME_STATE_DEAD)
			links_tell(links, PBEAM__LINK_NEWS_TYPE__LINK_NEWS_DROP, stub->vpid, 0, "");
}

void links_settle(struct job *job, struct vpid moved)
{
	struct links *links = job->links;
	struct guest *gone = moved.n ? links_find_guest(job, moved) : NULL;

	if (!links)
		return;
	if (gone)
		links_forget_guest(links, gone);
	for (struct guest *guest = links->guests; guest; guest = guest->next) {
		guest_deliver_kept(guest, links);
		if (guest->waits)
			guest_report_status(guest, links);
	}
	if (moved.n)
		drop_moved_stubs(links);
	links_deliver_signals(links, (struct vpid){0});
}

/* A stub that has no link just now reports its parent when the next one begins. */
void links_orphan(struct job *job, struct vpid vpid)
{
	if (links_has_stub(job, vpid))
		links_tell(job->links, PBEAM__LINK_NEWS_TYPE__LINK_NEWS_PARENT, vpid, 0, "");
}
