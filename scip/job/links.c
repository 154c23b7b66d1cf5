#include "scip/job/links.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "base/log.h"
#include "proto/frame.h"
#include "proto/message.h"
#include "scip/job/link_news.h"
#include "scip/job/remote_console.h"

enum { HELD_MAX = 32, KEPT_MAX = 16, AGAIN_NS = 1000000000, CONSOLE_END_MS = 1000 };

enum link_kind { LINK_ACCEPTOR, LINK_GUEST, LINK_STUB, LINK_CONSOLE };

struct link {
	struct link *next;
	struct job *job;
	enum link_kind kind;
	pid_t pid;	      /* of the process that holds the channel */
	int sock;	      /* to it */
	struct vpid vpid;     /* 0: not known yet */
	pid_t rpid;	      /* of the guest's process, of the stub; 0: not known */
	char host[64];	      /* guest: of the stub */
	char incarnation[40]; /* guest: the job's when the link was made */
	bool waits;	      /* guest: `status` is reported when the coordinator has ended */
	int status;
	int kept[KEPT_MAX]; /* guest: signals that came while the process may have been migrating */
	int nkept;
	int under_way; /* stub: signals that were sent and are not confirmed */
};

struct links {
	struct link *list;
	struct link_news held[HELD_MAX]; /* signals whose stub has no link just now */
	int nheld;
	struct vpid awaited; /* the process that was made last, which may be arriving ... */
	pid_t awaited_rpid;
	bool early; /* ... and changed to `early_status` before it had a link */
	int early_status;
};

static struct links *links_of(struct job *job)
{
	if (!job->links)
		job->links = calloc(1, sizeof(*job->links));
	return job->links;
}

static struct link *find_link(const struct job *job, enum link_kind kind, struct vpid vpid)
{
	for (struct link *link = job->links ? job->links->list : NULL; link; link = link->next)
		if (link->kind == kind && link->vpid.n == vpid.n)
			return link;
	return NULL;
}

static void drop_link(struct link *link)
{
	struct job *job = link->job;

	for (struct link **at = &job->links->list; *at; at = &(*at)->next)
		if (*at == link) {
			*at = link->next;
			break;
		}
	loop_unwatch(&job->loop, link->sock);
	close(link->sock);
	free(link);
}

static void send_news(const struct link *link, enum _Pbeam__LinkNews__Type type, int value, int from)
{
	struct link_news news = {
		.type = type, .vpid = link->vpid.n, .value = value, .from = from, .stub = link->rpid};

	int r = link_news_send(link->sock, &news, MSG_DONTWAIT);

	if (r < 0)
		log_warn("link of vpid %d: %s", link->vpid.n, strerror(-r));
}

/* False: the link's process is about to end and does not take it. */
static bool pass_signal(struct link *link, const struct link_news *news)
{
	if (link_news_send(link->sock, news, MSG_DONTWAIT) < 0)
		return false;
	link->under_way++;
	return true;
}

int links_under_way(const struct job *job)
{
	int n = job->links ? job->links->nheld : 0;

	for (const struct link *link = job->links ? job->links->list : NULL; link; link = link->next)
		n += link->under_way;
	return n;
}

/* ---- news from the processes ---- */

static void begin_stub(struct job *job, int channel);

/* A process that returns home does so into its stub. Another process with its number was made by a rollback.
 */
static bool is_replaced(const struct job *job, const struct link_news *news)
{
	struct name_process process;

	return news->stub && names_process_get(job->names, (struct vpid){news->vpid}, &process) == 0 &&
	       process.rpid.n != news->stub;
}

/* True if the process with the number runs here, so that the sender is one that a rollback has replaced. A
 * stub with another pid proves nothing: it may have been away with its parent, and be back. */
static bool is_left_over(const struct job *job, const struct link_news *news)
{
	struct name_process process;

	return is_replaced(job, news) &&
	       names_process_get(job->names, (struct vpid){news->vpid}, &process) == 0 &&
	       process.state == NAME_STATE_RUNNING;
}

static void on_hello(struct link *link, const struct link_news *news)
{
	struct links *links = link->job->links;
	struct link *older = find_link(link->job, LINK_STUB, (struct vpid){news->vpid});
	int n = 0;

	if (is_left_over(link->job, news)) { /* and does not know it if its channel broke just then */
		const struct link_news end = {.type = PBEAM__LINK_NEWS__TYPE__SIGNAL,
					      .vpid = news->vpid,
					      .value = SIGKILL,
					      .stub = news->stub};

		(void)!pass_signal(link, &end);
		return;
	}
	if (older && older != link) { /* it returns what is not confirmed */
		older->vpid.n = 0;
		shutdown(older->sock, SHUT_WR);
	}
	link->vpid.n = news->vpid;
	link->rpid = names_real(link->job->names, link->vpid).n;
	for (int i = 0; i < links->nheld; i++) {
		if (links->held[i].vpid == news->vpid && !is_replaced(link->job, &links->held[i]))
			(void)!pass_signal(link, &links->held[i]);
		else if (links->held[i].vpid != news->vpid)
			links->held[n++] = links->held[i];
	}
	links->nheld = n;
}

/* The link is the console's. There is one for each part of the job that is elsewhere. */
static void on_console(struct link *link, const struct link_news *news)
{
	struct link *older = find_link(link->job, LINK_CONSOLE, (struct vpid){news->vpid});

	link->kind = LINK_CONSOLE;
	link->vpid.n = news->vpid;
	if (!older)
		return;
	kill(older->pid, SIGTERM); /* it counts what it has written */
	drop_link(older);
}

/* Sends a signal to the process of a guest's link. A process that is dumped already would not take it along:
 * then the next host gets it. */
static void take_signal(struct link *link, int signal)
{
	if (link->job->departing && link->nkept < KEPT_MAX) {
		link->kept[link->nkept++] = signal;
		return;
	}
	if (link->rpid > 0 && !link->waits && kill(link->rpid, signal) < 0)
		log_info("vpid %d: signal %d came after its end", link->vpid.n, signal);
	send_news(link, PBEAM__LINK_NEWS__TYPE__SIGNALLED, 0, 0);
}

static void take_kept(struct link *link)
{
	int n = link->nkept;

	link->nkept = 0;
	for (int i = 0; i < n; i++)
		take_signal(link, link->kept[i]);
}

/* Sends a signal to where the process of the stub is, or keeps it until its link is there. The end of a stub
 * that a rollback replaces may be reported only when the new process is there. */
static void send_signal(struct job *job, const struct link_news *news)
{
	struct links *links = links_of(job);
	struct link *link = find_link(job, LINK_STUB, (struct vpid){news->vpid});
	struct name_process process;

	if (is_replaced(job, news)) {
		log_info("vpid %d: signal %d was for the process that is rolled back", news->vpid,
			 news->value);
		return;
	}
	if (link && pass_signal(link, news))
		return;
	if (names_process_get(job->names, (struct vpid){news->vpid}, &process) == 0 &&
	    process.state == NAME_STATE_RUNNING)
		(void)!kill(process.rpid.n, news->value); /* it is back */
	else if (links && links->nheld < HELD_MAX)
		links->held[links->nheld++] = *news;
	else
		log_warn("vpid %d: signal %d is lost", news->vpid, news->value);
}

static void on_news(void *arg, int fd)
{
	struct link *link = arg;
	struct link_news news;
	int r = link_news_receive(fd, &news, MSG_DONTWAIT);

	if (r == -EAGAIN || r == -EINTR)
		return;
	if (r <= 0) {
		drop_link(link); /* its process has ended */
		return;
	}
	if (link->kind == LINK_STUB && news.type == PBEAM__LINK_NEWS__TYPE__CONSOLE)
		on_console(link, &news);
	if (link->kind == LINK_STUB && news.type == PBEAM__LINK_NEWS__TYPE__HELLO)
		on_hello(link, &news);
	if (link->kind == LINK_STUB && news.type == PBEAM__LINK_NEWS__TYPE__SIGNALLED && link->under_way)
		link->under_way--;
	if (link->kind == LINK_STUB && news.type == PBEAM__LINK_NEWS__TYPE__SIGNAL) {
		link->vpid.n = link->under_way = 0;
		send_signal(link->job, &news);
	}
	if (link->kind == LINK_GUEST && news.type == PBEAM__LINK_NEWS__TYPE__SIGNAL)
		take_signal(link, news.value);
}

static void expect_again(void *arg)
{
	struct job *job = arg;
	struct err err = ERR_INIT;

	if (links_expect(job, &err) < 0)
		log_warn("%s", err.text);
}

/* A channel has come. Its first message says what it is for. */
static void on_expected(void *arg, int fd)
{
	struct link *link = arg;
	struct job *job = link->job;
	struct frame frame = {0};
	struct err err = ERR_INIT;
	int r = frame_recv(fd, &frame, &err);

	if (r > 0 && frame.nfds == 1)
		begin_stub(job, steal_fd(&frame.fds[0]));
	frame_free(&frame);
	if (r > 0)
		return;
	drop_link(link);
	if (loop_timer_start(&job->loop, AGAIN_NS, expect_again, job) < 0)
		log_warn("job %s: other hosts cannot reach it any more", job->entry.uuid);
}

/* ---- starting links ---- */

/* In the new process: closes what it does not need. */
static void become_link(struct job *job)
{
	sigset_t none;
	int console[3], ends[3], master = job->pty_master;

	/* Of the console each end keeps what it carries: at home the streams, at a guest's their other ends.
	 */
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
	prctl(PR_SET_NAME, "scip-link");
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	signal(SIGPIPE, SIG_IGN);
	/* The keeper leads the session of a terminal. A guest's end outlives it, and the SIGHUP of its end.
	 */
	signal(SIGHUP, SIG_IGN);
}

/* Forks. 0 in the child with its end in *sock, 1 in the keeper with the link in *out, or -errno. */
static int start_link(struct job *job, enum link_kind kind, int type, struct link **out, int *sock,
		      struct err *err)
{
	struct links *links = links_of(job);
	struct link *link = calloc(1, sizeof(*link));
	int pair[2] = {-1, -1}, r = 0;
	pid_t pid = -1;

	if (!links || !link)
		r = err_code(err, -ENOMEM, "make a link");
	else if (socketpair(AF_UNIX, type | SOCK_CLOEXEC, 0, pair) < 0)
		r = err_sys(err, "make a link");
	else if ((pid = fork()) < 0)
		r = err_sys(err, "make a link");
	if (pid == 0) {
		close(pair[0]);
		*sock = pair[1];
		become_link(job);
		return 0;
	}
	if (pair[1] >= 0)
		close(pair[1]);
	if (r == 0) {
		*link = (struct link){.job = job, .kind = kind, .pid = pid, .sock = pair[0]};
		r = loop_watch(&job->loop, link->sock, kind == LINK_ACCEPTOR ? on_expected : on_news, link);
		if (r < 0)
			err_code(err, r, "watch a link");
	}
	if (r < 0) {
		if (pair[0] >= 0)
			close(pair[0]);
		free(link);
		return r;
	}
	link->next = links->list;
	links->list = link;
	*out = link;
	return 1;
}

static void begin_stub(struct job *job, int channel)
{
	struct err err = ERR_INIT;
	struct link *link;
	int sock, r = start_link(job, LINK_STUB, SOCK_SEQPACKET, &link, &sock, &err);

	if (r == 0)
		link_stub_main(job, channel, sock);
	close(channel);
	if (r < 0)
		log_warn("job %s: %s", job->entry.uuid, err.text);
}

int links_expect(struct job *job, struct err *err)
{
	struct link *link;
	int sock, r;

	if (find_link(job, LINK_ACCEPTOR, (struct vpid){0}))
		return 0;
	r = remote_console_make_positions(job, err);
	if (r == 0)
		r = start_link(job, LINK_ACCEPTOR, SOCK_STREAM, &link, &sock, err);
	if (r == 0)
		link_acceptor_main(job, sock);
	return r < 0 ? r : 0;
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

static void report_status(struct link *link)
{
	link->waits = false;
	send_news(link, PBEAM__LINK_NEWS__TYPE__STATUS, link->status, 0);
	if (!WIFSTOPPED(link->status) && !WIFCONTINUED(link->status))
		link->rpid = 0;
}

int links_to_stub(struct job *job, struct vpid vpid, pid_t rpid, const char *host, struct err *err)
{
	struct link *link;
	int sock, r = start_link(job, LINK_GUEST, SOCK_SEQPACKET, &link, &sock, err);

	if (r == 0)
		link_guest_main(job, vpid, host, sock);
	if (r < 0)
		return r;
	link->vpid = vpid;
	link->rpid = rpid;
	snprintf(link->host, sizeof(link->host), "%s", host);
	snprintf(link->incarnation, sizeof(link->incarnation), "%s", job->incarnation);
	if (job->links->early && job->links->awaited.n == vpid.n) {
		link->status = job->links->early_status;
		report_status(link);
	}
	return 0;
}

int links_start_console(struct job *job, struct err *err)
{
	struct link *link;
	int sock, r = remote_console_prepare(job, err);

	if (r > 0)
		r = start_link(job, LINK_CONSOLE, SOCK_SEQPACKET, &link, &sock, err);
	else if (r == 0)
		return 0;
	if (r == 0)
		remote_console_guest_main(job, sock);
	for (int i = 0; i < 3; i++) /* held open here, standard input would never end */
		if (job->console_ends[i] >= 0)
			close(steal_fd(&job->console_ends[i]));
	return r < 0 ? r : 0;
}

/* Ends all links of a kind. */
static void drop_all(struct job *job, enum link_kind kind)
{
	struct link *next;

	for (struct link *link = job->links ? job->links->list : NULL; link; link = next) {
		next = link->next;
		if (link->kind != kind)
			continue;
		kill(link->pid, kind == LINK_CONSOLE ? SIGTERM : SIGKILL);
		drop_link(link);
	}
}

void links_stop_console(struct job *job)
{
	drop_all(job, LINK_CONSOLE);
	remote_console_free(job);
}

/* Waits until it has ended: nothing else reads from the console then. */
static void end_console(pid_t pid)
{
	auto_close int fd = pidfd_open(pid, 0);
	struct pollfd ended = {.fd = fd, .events = POLLIN};

	kill(pid, SIGTERM);
	if (fd < 0 || poll(&ended, 1, CONSOLE_END_MS) != 1)
		kill(pid, SIGKILL);
}

void links_end_consoles(const struct job *job, struct vpid vpid)
{
	for (struct link *link = job->links ? job->links->list : NULL; link && !job->home; link = link->next)
		if (link->kind == LINK_CONSOLE && (!vpid.n || link->vpid.n == vpid.n))
			end_console(link->pid);
}

/* ---- state changes, as the keeper sees them ---- */

const char *links_stub_host(const struct job *job, struct vpid vpid)
{
	const struct link *link = find_link(job, LINK_GUEST, vpid);

	return link ? link->host : "";
}

/* The stub of the job's first process was killed: so is the process where it is now. */
static void tell_killed(const struct job *job, int signal)
{
	const struct link *link = find_link(job, LINK_STUB, job->entry.root);

	if (link)
		send_news(link, PBEAM__LINK_NEWS__TYPE__SIGNAL, signal, 0);
}

void links_renew(struct job *job, struct vpid vpid, pid_t rpid)
{
	struct link *link = find_link(job, LINK_GUEST, vpid);

	if (!link)
		return;
	link->rpid = rpid;
	link->waits = false;
}

static void forget_link(struct job *job, enum link_kind kind, struct vpid vpid)
{
	struct link *link = find_link(job, kind, vpid);

	if (!link)
		return;
	kill(link->pid, SIGKILL);
	drop_link(link);
}

static void reset_stubs(struct job *job)
{
	drop_all(job, LINK_STUB);
	if (job->links)
		job->links->nheld = 0;
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
	struct link *next;

	for (struct link *link = job->links ? job->links->list : NULL; link; link = next) {
		next = link->next;
		if (link->kind == LINK_GUEST && !keeps_link(job, part, link->vpid))
			forget_link(job, LINK_GUEST, link->vpid);
	}
	for (size_t i = 0; i < part->n_guests; i++) {
		struct vpid vpid = {part->guests[i]->vpid};
		const struct link *link = find_link(job, LINK_GUEST, vpid);
		pid_t rpid = names_real(job->names, vpid).n;
		struct err err = ERR_INIT;

		if (link && link->rpid == rpid && !strcmp(link->incarnation, job->incarnation))
			continue;
		forget_link(job, LINK_GUEST, vpid);
		if (links_to_stub(job, vpid, rpid, part->guests[i]->host, &err) < 0)
			log_error("vpid %d: %s", vpid.n, err.text);
	}
}

void links_reset(struct job *job, const char *incarnation, const Pbeam__CutImageName *part)
{
	if (strcmp(job->incarnation, incarnation) != 0)
		reset_stubs(job);
	snprintf(job->incarnation, sizeof(job->incarnation), "%s", incarnation);
	reset_guests(job, part);
}

void links_child(struct job *job, pid_t rpid, int status)
{
	if (rpid == job->root && WIFSIGNALED(status))
		tell_killed(job, WTERMSIG(status));
	for (struct link *link = job->links ? job->links->list : NULL; link; link = link->next) {
		if (link->kind != LINK_GUEST || link->rpid != rpid)
			continue;
		link->status = status;
		link->waits = true;
		if (!job->coordinator)
			report_status(link);
		return;
	}
	/* A new process runs before its coordinator has ended, and may end first. */
	if (job->links && job->links->awaited_rpid == rpid) {
		job->links->early = true;
		job->links->early_status = status;
	}
}

/* Delivers signals for processes that have returned home meanwhile. */
static void deliver_held(struct job *job)
{
	struct links *links = job->links;
	int n = links ? links->nheld : 0;

	if (links)
		links->nheld = 0;
	for (int i = 0; i < n; i++)
		send_signal(job, &links->held[i]); /* or holds it again, in a slot that was read */
}

void links_settle(struct job *job, struct vpid moved)
{
	struct link *link = moved.n ? find_link(job, LINK_GUEST, moved) : NULL, *next;
	struct name_process process;

	if (link) {
		send_news(link, PBEAM__LINK_NEWS__TYPE__MOVED, 0, 0);
		drop_link(link);
	}
	for (link = job->links ? job->links->list : NULL; link; link = next) {
		next = link->next;
		take_kept(link);
		if (link->waits)
			report_status(link);
		else if (moved.n && link->kind == LINK_STUB && link->vpid.n &&
			 (names_process_get(job->names, link->vpid, &process) < 0 ||
			  process.state == NAME_STATE_DEAD))
			drop_link(link); /* the stub went along: the other end looks for it again */
	}
	deliver_held(job);
}

void links_signal(struct job *job, const Pbeam__RemoteSignal *signal)
{
	const struct link_news news = {PBEAM__LINK_NEWS__TYPE__SIGNAL, signal->vpid, signal->signal,
				       signal->from, signal->stub};

	send_signal(job, &news);
}

/* A stub that has no link just now reports its parent when the next one begins. */
void links_orphan(struct job *job, struct vpid vpid)
{
	const struct link *link = find_link(job, LINK_STUB, vpid);

	if (link)
		send_news(link, PBEAM__LINK_NEWS__TYPE__PARENT, 0, 0);
}

bool links_reaped(struct job *job, pid_t pid)
{
	for (struct link *link = job->links ? job->links->list : NULL; link; link = link->next)
		if (link->pid == pid)
			return true; /* its socket reports it */
	return false;
}
