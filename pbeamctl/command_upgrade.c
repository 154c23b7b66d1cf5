#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/text.h"
#include "namespace/names.h"
#include "pbeamctl/client.h"
#include "pbeamctl/command.h"
#include "proto/ask.h"
#include "proto/daemon.h"
#include "proto/message.h"

enum { END_TIMEOUT_MS = 10000 };

/* Ends a pbeamd of another program file. The next request starts ours, which finds all jobs and, in a
 * cluster, the options that it was started with. */
static int replace_daemon(struct err *err)
{
	auto_close int sock = ask_open("pbeamctl " PBEAM_VERSION, err);
	struct pollfd ended = {.fd = sock, .events = POLLIN | POLLRDHUP};
	char ours[PATH_MAX], theirs[64];
	struct stat a, b;
	struct ucred peer;
	socklen_t len = sizeof(peer);
	int r = sock < 0 ? sock : daemon_find_program("pbeamd", ours, sizeof(ours), err);

	if (r < 0)
		return r;
	if (getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &peer, &len) < 0)
		return err_sys(err, "find the process of pbeamd");
	snprintf(theirs, sizeof(theirs), "/proc/%d/exe", (int)peer.pid);
	if (stat(ours, &a) < 0 || stat(theirs, &b) < 0 || (a.st_dev == b.st_dev && a.st_ino == b.st_ino))
		return 0;
	if (kill(peer.pid, SIGTERM) < 0)
		return err_sys(err, "end pbeamd, process %d", (int)peer.pid);
	if (poll(&ended, 1, END_TIMEOUT_MS) <= 0)
		return err_set(err, -ETIMEDOUT, "pbeamd, process %d, does not end", (int)peer.pid);
	close(steal_fd(&sock));
	r = sock = ask_open("pbeamctl " PBEAM_VERSION, err);
	if (r >= 0)
		puts("pbeamd " PBEAM_VERSION " serves");
	return r < 0 ? r : 0;
}

static int upgrade_job(Pbeam__Target *target, const char *shown, struct err *err)
{
	Pbeam__UpgradeRequest request = PBEAM__UPGRADE_REQUEST__INIT;
	Pbeam__UpgradeReply *reply;
	char found[PATH_MAX], program[PATH_MAX];
	int r = daemon_find_program("scip", found, sizeof(found), err);

	if (r < 0)
		return r;
	if (!realpath(found, program))
		return err_sys(err, "%s", found);
	request.target = target;
	request.program = program;
	r = client_ask(PBEAM__DAEMON_REQUEST__DAEMON_UPGRADE, &request.base,
		       &pbeam__upgrade_reply__descriptor, &reply, err);
	if (r < 0)
		return r;
	printf("%s runs under %s\n", text_visible(shown), text_visible(reply->program));
	message_free(reply);
	return 0;
}

static int upgrade_all(struct err *err)
{
	auto_free struct name_job *jobs = NULL;
	int n, failed = STATUS_DONE;
	struct names *names;
	int r = names_open(&names, err);

	if (r < 0)
		return command_failed(err);
	names_include_others(names);
	names_limit_wait(names, true);
	n = names_jobs_snapshot(names, &jobs);
	if (n < 0)
		names_explain(names, n, err);
	names_close(names);
	if (n < 0)
		return command_failed(err);
	for (int i = 0; i < n; i++) {
		Pbeam__Target target = PBEAM__TARGET__INIT;
		char shown[NAME_TEXT_MAX + 32];

		if (jobs[i].home[0])
			continue; /* a part of another host's job */
		err_clear(err);
		target.vpid = jobs[i].root.n;
		snprintf(shown, sizeof(shown), "vpid %d%s%s%s", jobs[i].root.n, jobs[i].name[0] ? " (" : "",
			 jobs[i].name, jobs[i].name[0] ? ")" : "");
		if (upgrade_job(&target, shown, err) < 0)
			failed = command_failed(err);
	}
	return failed;
}

static int upgrade_run(const struct command_line *line)
{
	struct err err = ERR_INIT;
	Pbeam__Target target;

	if (replace_daemon(&err) < 0)
		return command_failed(&err);
	if (!line->nwords)
		return upgrade_all(&err);
	client_target(line->words[0], &target);
	return upgrade_job(&target, line->words[0], &err) < 0 ? command_failed(&err) : STATUS_DONE;
}

const struct command upgrade_command = {
	.name = "upgrade",
	.synopsis = "[VPID|NAME]",
	.summary = "run jobs under this version without ending them",
	.text = "After the installation of another version: replaces pbeamd, and the keeper and scips of\n"
		"this job, or of all jobs of this host, by this version's. The programs go on. A job that\n"
		"has processes on other hosts, or whose version is too different, is refused, and goes on\n"
		"under the old version, which this one can list, save and end.",
	.options = command_no_options,
	.words = WORDS_TARGET,
	.least = 0,
	.most = 1,
	.run = upgrade_run,
};
