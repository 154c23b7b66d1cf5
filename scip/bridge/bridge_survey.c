/* Finds, before the freeze, the descriptions for which a migration must be refused. */
#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/un.h>

#include "base/cleanup.h"
#include "scip/bridge/bridge_source.h"
#include "scip/object/inet.h"
#include "scip/object/socket.h"
#include "scip/object/tcp_look.h"
#include "scip/object/unix_diag.h"
#include "scip/tracee/procfs.h"

/* Lists the target and its present descendants in *out, which the caller frees. Returns their number, or
 * -errno. */
static int list_members(const struct migrate_source *source, pid_t **out)
{
	auto_free struct name_process *all = NULL;
	int n = names_snapshot(source->names, source->job->keeper, &all), found = 0;
	pid_t *pids = *out = n < 0 ? NULL : calloc((size_t)n + 1, sizeof(*pids));

	if (!pids)
		return n < 0 ? n : -ENOMEM;
	for (int i = 0; i < n; i++) {
		struct name_process at = all[i];
		int depth = 0;

		while (at.vpid.n != source->target.n && at.parent.n > 0 && depth++ < n &&
		       names_process_get(source->names, at.parent, &at) == 0)
			continue;
		if (at.vpid.n == source->target.n)
			pids[found++] = all[i].rpid.n;
	}
	return found;
}

static bool seen_before(const struct holders *own, size_t i)
{
	for (size_t j = 0; j < i; j++)
		if (own->v[j].ino == own->v[i].ino)
			return true;
	return false;
}

/* True if the process moves, or has ended. A child born after the list was made moves with its parent. */
static bool is_group_member(pid_t pid, const pid_t *members, size_t n)
{
	struct procfs_stat stat;

	while (pid > 1) {
		for (size_t i = 0; i < n; i++)
			if (members[i] == pid)
				return true;
		if (procfs_stat_read(pid, 0, &stat, NULL) < 0)
			return true;
		pid = stat.ppid;
	}
	return false;
}

/* What the survey found while the processes run. */
struct survey {
	pid_t *pids; /* the processes that move */
	size_t n;
	struct holders own, outside, console;
	struct unix_diag_table diag;
};

/* ---- sockets ---- */

static int survey_duplicate(const struct holder *own)
{
	auto_close int pidfd = pidfd_open(own->pid, 0);

	return pidfd < 0 ? -1 : pidfd_getfd(pidfd, own->fd, 0);
}

/* True if a process that moves has the socket that is bound to this address. */
static bool is_own_address(const struct survey *survey, const struct inet_address *address)
{
	for (size_t i = 0; i < survey->own.n; i++) {
		struct inet_address at = {.len = sizeof(at.v6)};
		auto_close int fd = survey->own.v[i].socket ? survey_duplicate(&survey->own.v[i]) : -1;

		if (fd >= 0 && getsockname(fd, &at.any, &at.len) == 0 && at.len == address->len &&
		    !memcmp(&at.any, &address->any, at.len))
			return true;
	}
	return false;
}

static bool tcp_matters(const struct survey *survey, int fd)
{
	struct tcp_look look;
	struct err err = ERR_INIT;

	return tcp_look(fd, &look, &err) == 0 &&
	       (look.kind == TCP_KIND_LISTENS ||
		(look.kind == TCP_KIND_CONNECTED && !is_own_address(survey, &look.peer)));
}

static bool udp_matters(int fd)
{
	struct inet_address peer = {.len = sizeof(peer.v6)}, own = {.len = sizeof(own.v6)};

	return getsockname(fd, &own.any, &own.len) == 0 &&
	       (inet_port(&own) || getpeername(fd, &peer.any, &peer.len) == 0);
}

/* True if the other end, or possible callers, stay. */
static bool unix_matters(const struct survey *survey, int fd, const struct unix_diag *diag)
{
	struct sockaddr_un name;
	socklen_t len = sizeof(name);

	if (socket_option(fd, SOL_SOCKET, SO_ACCEPTCONN, 0))
		return getsockname(fd, (struct sockaddr *)&name, &len) == 0 &&
		       len > offsetof(struct sockaddr_un, sun_path);
	return diag && diag->peer && diag->peer != diag->ino &&
	       !holders_find(&survey->own, diag->peer, true, true);
}

/* Returns a process that stays and holds this socket too, if the other end stays as well; else NULL. */
static const struct holder *socket_in_two_places(const struct survey *survey, const struct holder *own)
{
	const struct unix_diag *diag = unix_diag_find(&survey->diag, own->ino);
	const struct holder *other =
		holders_find_one_sided(&survey->outside, own->ino, diag ? diag->peer : 0);
	auto_close int fd = other ? survey_duplicate(own) : -1;
	int family = fd < 0 ? -1 : socket_option(fd, SOL_SOCKET, SO_DOMAIN, -1);
	int protocol = fd < 0 ? -1 : socket_option(fd, SOL_SOCKET, SO_PROTOCOL, -1);
	bool matters = false;

	if (family == AF_UNIX)
		matters = unix_matters(survey, fd, diag);
	else if ((family == AF_INET || family == AF_INET6) && protocol == IPPROTO_TCP)
		matters = tcp_matters(survey, fd);
	else if ((family == AF_INET || family == AF_INET6) && protocol == IPPROTO_UDP)
		matters = udp_matters(fd);
	return matters ? other : NULL;
}

/* ---- all ---- */

/* Refuses a description that would be read on two hosts. The keeper also holds the console's streams, which
 * are its own. */
static int survey_holder(struct migrate_source *source, const struct survey *survey, const struct holder *own,
			 struct err *err)
{
	const struct holder *other = own->pipe && own->reads
					     ? holders_find(&survey->outside, own->ino, true, false)
				     : own->slave  ? holders_find_slave(&survey->outside, own->ino)
				     : own->socket ? socket_in_two_places(survey, own)
						   : NULL;

	const char *what = own->pipe ? "the read end of a pipe" : own->slave ? "a terminal" : "a socket";
	char comm[32];

	if (!other || holders_find(&survey->console, own->ino, true, true) ||
	    is_group_member(other->pid, survey->pids, survey->n))
		return 0;
	err_clear(err);
	if (source->leave_shared && !own->slave) {
		if (source->dry_run)
			migrate_note(source,
				     "fd %d of process %d will be closed: %s that process %d (%s) keeps",
				     own->fd, own->pid, what, other->pid, bridge_comm_of(other->pid, comm));
		return 0;
	}
	if (bridge_refuse_shared(other, what, err) == 0)
		return 0;
	if (!source->dry_run)
		return err_wrap(err, -ENOTSUP, "process %d: fd %d", own->pid, own->fd);
	migrate_obstacle(source, "process %d: fd %d is %s", own->pid, own->fd, err->text);
	err_clear(err);
	return 0;
}

int bridge_survey(struct migrate_source *source, void **state, struct err *err)
{
	auto_free pid_t *pids = NULL;
	struct survey survey = {0};
	int r = list_members(source, &pids);

	if (r < 0)
		return err_code(err, r, "list the processes");
	survey.pids = pids;
	survey.n = (size_t)r;
	r = holders_read(&survey.outside, pids, survey.n, err);
	if (r == 0)
		r = holders_add(&survey.console, source->job->keeper.n);
	for (size_t i = 0; i < survey.n && r == 0; i++)
		r = holders_add(&survey.own, pids[i]);
	if (r == 0)
		r = unix_diag_read(&survey.diag, err);
	for (size_t i = 0; i < survey.own.n && r == 0; i++)
		if (!seen_before(&survey.own, i))
			r = survey_holder(source, &survey, &survey.own.v[i], err);
	holders_free(&survey.own);
	holders_free(&survey.outside);
	holders_free(&survey.console);
	unix_diag_free(&survey.diag);
	return r;
}
