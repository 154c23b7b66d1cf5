#include "scip/job/line.h"

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
#include "scip/job/remote_console.h"

enum { HELD_MAX = 32, KEPT_MAX = 16, AGAIN_NS = 1000000000, CONSOLE_END_MS = 1000 };

enum line_kind { LINE_EXPECT, LINE_GUEST, LINE_STUB, LINE_CONSOLE };

struct line {
	struct line *next;
	struct job *job;
	enum line_kind kind;
	pid_t pid;	      /* of the process that has the channel */
	int sock;	      /* to it */
	struct vpid vpid;     /* 0: not known yet */
	pid_t rpid;	      /* guest; stub: its own, 0: not known */
	char host[64];	      /* guest: of the stub */
	char incarnation[40]; /* guest: what the job's was when the line was made */
	bool waits;	      /* guest: `status` is to be told when the coordinator has ended */
	int status;
	int kept[KEPT_MAX]; /* guest: signals that came while it may have been on its way */
	int nkept;
	int under_way; /* stub: signals that were sent and have not arrived */
};

struct lines {
	struct line *list;
	struct line_word held[HELD_MAX]; /* signals whose stub has no line just now */
	int nheld;
	struct vpid awaited; /* the process that was made last, which may be arriving ... */
	pid_t awaited_rpid;
	bool early; /* ... and `early_status` has befallen it before it had a line */
	int early_status;
};

static struct lines *lines_of(struct job *job)
{
	if (!job->lines)
		job->lines = calloc(1, sizeof(*job->lines));
	return job->lines;
}

static struct line *find(const struct job *job, enum line_kind kind, struct vpid vpid)
{
	for (struct line *line = job->lines ? job->lines->list : NULL; line; line = line->next)
		if (line->kind == kind && line->vpid.n == vpid.n)
			return line;
	return NULL;
}

static void drop(struct line *line)
{
	struct job *job = line->job;

	for (struct line **at = &job->lines->list; *at; at = &(*at)->next)
		if (*at == line) {
			*at = line->next;
			break;
		}
	loop_unwatch(&job->loop, line->sock);
	close(line->sock);
	free(line);
}

static void say(const struct line *line, enum line_word_type type, int value, int from)
{
	struct line_word word = {
		.type = type, .vpid = line->vpid.n, .value = value, .from = from, .stub = line->rpid};

	if (send(line->sock, &word, sizeof(word), MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
		log_warn("line of vpid %d: %s", line->vpid.n, strerror(errno));
}

/* False: a line that is about to end refuses it. */
static bool pass_signal(struct line *line, const struct line_word *word)
{
	if (send(line->sock, word, sizeof(*word), MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
		return false;
	line->under_way++;
	return true;
}

int lines_under_way(const struct job *job)
{
	int n = job->lines ? job->lines->nheld : 0;

	for (const struct line *line = job->lines ? job->lines->list : NULL; line; line = line->next)
		n += line->under_way;
	return n;
}

/* ---- what comes from the processes ---- */

static void begin_stub(struct job *job, int channel);

/* A process that comes home does so into its stub: another one that has the number is of a rollback. */
static bool is_replaced(const struct job *job, const struct line_word *word)
{
	struct name_process process;

	return word->stub && names_process_get(job->names, (struct vpid){word->vpid}, &process) == 0 &&
	       process.rpid.n != word->stub;
}

/* The number's process runs here: who calls for it is one that a rollback has replaced. (A stub with another
 * pid proves nothing: it may have been away with its parent, and be back.) */
static bool is_left_over(const struct job *job, const struct line_word *word)
{
	struct name_process process;

	return is_replaced(job, word) &&
	       names_process_get(job->names, (struct vpid){word->vpid}, &process) == 0 &&
	       process.state == NAME_STATE_RUNNING;
}

static void on_hello(struct line *line, const struct line_word *word)
{
	struct lines *lines = line->job->lines;
	struct line *older = find(line->job, LINE_STUB, (struct vpid){word->vpid});
	int n = 0;

	if (is_left_over(line->job, word)) { /* and does not know it, if its line was cut just then */
		const struct line_word end = {
			.type = LINE_WORD_SIGNAL, .vpid = word->vpid, .value = SIGKILL, .stub = word->stub};

		(void)!pass_signal(line, &end);
		return;
	}
	if (older && older != line) { /* it gives back what has not arrived */
		older->vpid.n = 0;
		shutdown(older->sock, SHUT_WR);
	}
	line->vpid.n = word->vpid;
	line->rpid = names_real(line->job->names, line->vpid).n;
	for (int i = 0; i < lines->nheld; i++) {
		if (lines->held[i].vpid == word->vpid && !is_replaced(line->job, &lines->held[i]))
			(void)!pass_signal(line, &lines->held[i]);
		else if (lines->held[i].vpid != word->vpid)
			lines->held[n++] = lines->held[i];
	}
	lines->nheld = n;
}

/* It is no stub's but the console's; there is one for each part of the job that is elsewhere. */
static void on_far(struct line *line, const struct line_word *word)
{
	struct line *older = find(line->job, LINE_CONSOLE, (struct vpid){word->vpid});

	line->kind = LINE_CONSOLE;
	line->vpid.n = word->vpid;
	if (!older)
		return;
	kill(older->pid, SIGTERM); /* it counts what it has written */
	drop(older);
}

/* To the process of a guest's line. One that is dumped already would not take it along: then the next host is
 * told. */
static void take_signal(struct line *line, int signal)
{
	if (line->job->departing && line->nkept < KEPT_MAX) {
		line->kept[line->nkept++] = signal;
		return;
	}
	if (line->rpid > 0 && !line->waits && kill(line->rpid, signal) < 0)
		log_info("vpid %d: signal %d comes too late", line->vpid.n, signal);
	say(line, LINE_WORD_SIGNALLED, 0, 0);
}

static void take_kept(struct line *line)
{
	int n = line->nkept;

	line->nkept = 0;
	for (int i = 0; i < n; i++)
		take_signal(line, line->kept[i]);
}

/* To where the process of the stub is; kept while nobody says that. The end of a stub that a rollback
 * replaces may be told only when the new process is there. */
static void send_signal(struct job *job, const struct line_word *word)
{
	struct lines *lines = lines_of(job);
	struct line *line = find(job, LINE_STUB, (struct vpid){word->vpid});
	struct name_process process;

	if (is_replaced(job, word)) {
		log_info("vpid %d: signal %d was for the one that is rolled back", word->vpid, word->value);
		return;
	}
	if (line && pass_signal(line, word))
		return;
	if (names_process_get(job->names, (struct vpid){word->vpid}, &process) == 0 &&
	    process.state == NAME_STATE_RUNNING)
		(void)!kill(process.rpid.n, word->value); /* it is back */
	else if (lines && lines->nheld < HELD_MAX)
		lines->held[lines->nheld++] = *word;
	else
		log_warn("vpid %d: signal %d is lost", word->vpid, word->value);
}

static void on_word(void *arg, int fd)
{
	struct line *line = arg;
	struct line_word word;
	ssize_t n = recv(fd, &word, sizeof(word), MSG_DONTWAIT);

	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (n != (ssize_t)sizeof(word)) {
		drop(line); /* its process has ended */
		return;
	}
	if (line->kind == LINE_STUB && word.type == LINE_WORD_CONSOLE)
		on_far(line, &word);
	if (line->kind == LINE_STUB && word.type == LINE_WORD_HELLO)
		on_hello(line, &word);
	if (line->kind == LINE_STUB && word.type == LINE_WORD_SIGNALLED && line->under_way)
		line->under_way--;
	if (line->kind == LINE_STUB && word.type == LINE_WORD_SIGNAL) {
		line->vpid.n = line->under_way = 0;
		send_signal(line->job, &word);
	}
	if (line->kind == LINE_GUEST && word.type == LINE_WORD_SIGNAL)
		take_signal(line, word.value);
}

static void expect_again(void *arg)
{
	struct job *job = arg;
	struct err err = ERR_INIT;

	if (lines_expect(job, &err) < 0)
		log_warn("%s", err.text);
}

/* A channel has come, for whatever it says. */
static void on_expected(void *arg, int fd)
{
	struct line *line = arg;
	struct job *job = line->job;
	struct frame frame = {0};
	struct err err = ERR_INIT;
	int r = frame_recv(fd, &frame, &err);

	if (r > 0 && frame.nfds == 1)
		begin_stub(job, steal_fd(&frame.fds[0]));
	frame_free(&frame);
	if (r > 0)
		return;
	drop(line);
	if (loop_timer_start(&job->loop, AGAIN_NS, expect_again, job) < 0)
		log_warn("job %s: other hosts cannot reach it any more", job->entry.uuid);
}

/* ---- starting them ---- */

/* In the new process: what is not its business goes. */
static void become_line(struct job *job)
{
	sigset_t none;
	int console[3], ends[3], master = job->pty_master;

	/* Of the console each has what it carries: at home the streams, at a guest's their other ends. */
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
	prctl(PR_SET_NAME, "scip-line");
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	signal(SIGPIPE, SIG_IGN);
	/* The keeper leads the session of a terminal: its end, which a guest's outlive, is not theirs. */
	signal(SIGHUP, SIG_IGN);
}

/* Forks; 0 in the child with *sock its end, else the line or an error in *out. */
static int start(struct job *job, enum line_kind kind, int type, struct line **out, int *sock,
		 struct err *err)
{
	struct lines *lines = lines_of(job);
	struct line *line = calloc(1, sizeof(*line));
	int pair[2] = {-1, -1}, r = 0;
	pid_t pid = -1;

	if (!lines || !line)
		r = err_code(err, -ENOMEM, "make a line");
	else if (socketpair(AF_UNIX, type | SOCK_CLOEXEC, 0, pair) < 0)
		r = err_sys(err, "make a line");
	else if ((pid = fork()) < 0)
		r = err_sys(err, "make a line");
	if (pid == 0) {
		close(pair[0]);
		*sock = pair[1];
		become_line(job);
		return 0;
	}
	if (pair[1] >= 0)
		close(pair[1]);
	if (r == 0) {
		*line = (struct line){.job = job, .kind = kind, .pid = pid, .sock = pair[0]};
		r = loop_watch(&job->loop, line->sock, kind == LINE_EXPECT ? on_expected : on_word, line);
		if (r < 0)
			err_code(err, r, "watch a line");
	}
	if (r < 0) {
		if (pair[0] >= 0)
			close(pair[0]);
		free(line);
		return r;
	}
	line->next = lines->list;
	lines->list = line;
	*out = line;
	return 1;
}

static void begin_stub(struct job *job, int channel)
{
	struct err err = ERR_INIT;
	struct line *line;
	int sock, r = start(job, LINE_STUB, SOCK_SEQPACKET, &line, &sock, &err);

	if (r == 0)
		line_stub_main(job, channel, sock);
	close(channel);
	if (r < 0)
		log_warn("job %s: %s", job->entry.uuid, err.text);
}

int lines_expect(struct job *job, struct err *err)
{
	struct line *line;
	int sock, r;

	if (find(job, LINE_EXPECT, (struct vpid){0}))
		return 0;
	r = remote_console_make_positions(job, err);
	if (r == 0)
		r = start(job, LINE_EXPECT, SOCK_STREAM, &line, &sock, err);
	if (r == 0)
		line_expect_main(job, sock);
	return r < 0 ? r : 0;
}

void lines_await(struct job *job, struct vpid vpid, pid_t rpid)
{
	struct lines *lines = lines_of(job);

	if (!lines)
		return; /* nor will it have a line */
	lines->awaited = vpid;
	lines->awaited_rpid = rpid;
	lines->early = false;
}

static void tell(struct line *line)
{
	line->waits = false;
	say(line, LINE_WORD_STATUS, line->status, 0);
	if (!WIFSTOPPED(line->status) && !WIFCONTINUED(line->status))
		line->rpid = 0;
}

int lines_to_stub(struct job *job, struct vpid vpid, pid_t rpid, const char *host, struct err *err)
{
	struct line *line;
	int sock, r = start(job, LINE_GUEST, SOCK_SEQPACKET, &line, &sock, err);

	if (r == 0)
		line_guest_main(job, vpid, host, sock);
	if (r < 0)
		return r;
	line->vpid = vpid;
	line->rpid = rpid;
	snprintf(line->host, sizeof(line->host), "%s", host);
	snprintf(line->incarnation, sizeof(line->incarnation), "%s", job->incarnation);
	if (job->lines->early && job->lines->awaited.n == vpid.n) {
		line->status = job->lines->early_status;
		tell(line);
	}
	return 0;
}

int lines_start_console(struct job *job, struct err *err)
{
	struct line *line;
	int sock, r = remote_console_prepare(job, err);

	if (r > 0)
		r = start(job, LINE_CONSOLE, SOCK_SEQPACKET, &line, &sock, err);
	else if (r == 0)
		return 0;
	if (r == 0)
		remote_console_guest_main(job, sock);
	for (int i = 0; i < 3; i++) /* held open here, standard input would never end */
		if (job->console_ends[i] >= 0)
			close(steal_fd(&job->console_ends[i]));
	return r < 0 ? r : 0;
}

/* All of a kind that have somebody at the other end. */
static void drop_all(struct job *job, enum line_kind kind)
{
	struct line *next;

	for (struct line *line = job->lines ? job->lines->list : NULL; line; line = next) {
		next = line->next;
		if (line->kind != kind)
			continue;
		kill(line->pid, kind == LINE_CONSOLE ? SIGTERM : SIGKILL);
		drop(line);
	}
}

void lines_stop_console(struct job *job)
{
	drop_all(job, LINE_CONSOLE);
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

void lines_end_consoles(const struct job *job, struct vpid vpid)
{
	for (struct line *line = job->lines ? job->lines->list : NULL; line && !job->home; line = line->next)
		if (line->kind == LINE_CONSOLE && (!vpid.n || line->vpid.n == vpid.n))
			end_console(line->pid);
}

/* ---- what the keeper knows ---- */

const char *lines_stub_host(const struct job *job, struct vpid vpid)
{
	const struct line *line = find(job, LINE_GUEST, vpid);

	return line ? line->host : "";
}

/* Its stub, the job's first process, was killed: so it is where it is now. */
static void tell_killed(const struct job *job, int signal)
{
	const struct line *line = find(job, LINE_STUB, job->entry.root);

	if (line)
		say(line, LINE_WORD_SIGNAL, signal, 0);
}

void lines_renew(struct job *job, struct vpid vpid, pid_t rpid)
{
	struct line *line = find(job, LINE_GUEST, vpid);

	if (!line)
		return;
	line->rpid = rpid;
	line->waits = false;
}

static void forget(struct job *job, enum line_kind kind, struct vpid vpid)
{
	struct line *line = find(job, kind, vpid);

	if (!line)
		return;
	kill(line->pid, SIGKILL);
	drop(line);
}

static void reset_stubs(struct job *job)
{
	drop_all(job, LINE_STUB);
	if (job->lines)
		job->lines->nheld = 0;
}

/* The stub of the job's first process is with its console, in no part. */
static bool keeps_line(const struct job *job, const Pbeam__CutImageName *part, struct vpid vpid)
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
	struct line *next;

	for (struct line *line = job->lines ? job->lines->list : NULL; line; line = next) {
		next = line->next;
		if (line->kind == LINE_GUEST && !keeps_line(job, part, line->vpid))
			forget(job, LINE_GUEST, line->vpid);
	}
	for (size_t i = 0; i < part->n_guests; i++) {
		struct vpid vpid = {part->guests[i]->vpid};
		const struct line *line = find(job, LINE_GUEST, vpid);
		pid_t rpid = names_real(job->names, vpid).n;
		struct err err = ERR_INIT;

		if (line && line->rpid == rpid && !strcmp(line->incarnation, job->incarnation))
			continue;
		forget(job, LINE_GUEST, vpid);
		if (lines_to_stub(job, vpid, rpid, part->guests[i]->host, &err) < 0)
			log_error("vpid %d: %s", vpid.n, err.text);
	}
}

void lines_reset(struct job *job, const char *incarnation, const Pbeam__CutImageName *part)
{
	if (strcmp(job->incarnation, incarnation) != 0)
		reset_stubs(job);
	snprintf(job->incarnation, sizeof(job->incarnation), "%s", incarnation);
	reset_guests(job, part);
}

void lines_child(struct job *job, pid_t rpid, int status)
{
	if (rpid == job->root && WIFSIGNALED(status))
		tell_killed(job, WTERMSIG(status));
	for (struct line *line = job->lines ? job->lines->list : NULL; line; line = line->next) {
		if (line->kind != LINE_GUEST || line->rpid != rpid)
			continue;
		line->status = status;
		line->waits = true;
		if (!job->coordinator)
			tell(line);
		return;
	}
	/* It runs before its coordinator has ended, and may end first. */
	if (job->lines && job->lines->awaited_rpid == rpid) {
		job->lines->early = true;
		job->lines->early_status = status;
	}
}

/* Signals for those that have come home meanwhile. */
static void deliver_held(struct job *job)
{
	struct lines *lines = job->lines;
	int n = lines ? lines->nheld : 0;

	if (lines)
		lines->nheld = 0;
	for (int i = 0; i < n; i++)
		send_signal(job, &lines->held[i]); /* or it is held again, in a place that was read */
}

void lines_settle(struct job *job, struct vpid moved)
{
	struct line *line = moved.n ? find(job, LINE_GUEST, moved) : NULL, *next;
	struct name_process process;

	if (line) {
		say(line, LINE_WORD_MOVED, 0, 0);
		drop(line);
	}
	for (line = job->lines ? job->lines->list : NULL; line; line = next) {
		next = line->next;
		take_kept(line);
		if (line->waits)
			tell(line);
		else if (moved.n && line->kind == LINE_STUB && line->vpid.n &&
			 (names_process_get(job->names, line->vpid, &process) < 0 ||
			  process.state == NAME_STATE_DEAD))
			drop(line); /* the stub went along: the other end looks for it anew */
	}
	deliver_held(job);
}

void lines_signal(struct job *job, const Pbeam__RemoteSignal *signal)
{
	const struct line_word word = {LINE_WORD_SIGNAL, signal->vpid, signal->signal, signal->from,
				       signal->stub};

	send_signal(job, &word);
}

/* Who has no line just now is told with the next one's beginning. */
void lines_orphan(struct job *job, struct vpid vpid)
{
	const struct line *line = find(job, LINE_STUB, vpid);

	if (line)
		say(line, LINE_WORD_PARENT, 0, 0);
}

bool lines_reaped(struct job *job, pid_t pid)
{
	for (struct line *line = job->lines ? job->lines->list : NULL; line; line = line->next)
		if (line->pid == pid)
			return true; /* its socket tells */
	return false;
}
