/*
 * Checkpoints and rollbacks of a job with parts on several hosts, or of a group of jobs: a child executes
 * `scip cut`, which leads the operation and replies to the user.
 */
#include "pbeamd/services/cut_request.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "pbeamd/services/target.h"
#include "pbeamd/transport/cluster.h"
#include "pbeamd/transport/server.h"
#include "pbeamd/transport/worker.h"
#include "proto/daemon.h"
#include "proto/rpc.h"

enum { USER_FD = 3, REQUEST_FD = 4 };

struct leading {
	const char *what;
	int request; /* a file with it */
};

bool cut_is_group(struct server *server, const char *name)
{
	auto_free struct name_job *jobs = NULL;
	int n = name[0] ? names_jobs_snapshot(server->names, &jobs) : 0;
	bool found = false;

	for (int i = 0; i < n; i++) {
		if (!strcmp(jobs[i].name, name))
			return false; /* a job has the name */
		found = found || !strcmp(jobs[i].group, name);
	}
	return found;
}

bool cut_is_spread(struct server *server, const struct target *target)
{
	struct rpid keeper = target->job.keeper;
	auto_free struct name_process *all = NULL;
	int n;

	if (target->process.vpid.n != target->job.root.n)
		return false;
	n = names_snapshot(server->names, keeper, &all);
	for (int i = 0; i < n; i++)
		if (all[i].state == NAME_STATE_STUB && all[i].vpid.n != target->job.root.n)
			return true;
	return false;
}

/* In the child. */
static void cut_request_lead(struct server *server, int sock, const void *arg)
{
	const struct leading *leading = arg;
	struct err err = ERR_INIT;
	char scip[PATH_MAX];
	int request = fcntl(leading->request, F_DUPFD_CLOEXEC, REQUEST_FD + 1);
	int user = fcntl(sock, F_DUPFD_CLOEXEC, REQUEST_FD + 1), null;

	if (request < 0 || user < 0 || daemon_find_program("scip", scip, sizeof(scip), &err) < 0) {
		if (!err.code)
			err_set(&err, -EMFILE, "start scip cut");
		rpc_refuse(sock, &err);
		return;
	}
	null = open("/dev/null", O_RDWR);
	dup2(null, STDIN_FILENO);
	dup2(null, STDOUT_FILENO);
	if (server->options->background)
		dup2(null, STDERR_FILENO);
	dup2(user, USER_FD);
	dup2(request, REQUEST_FD);
	close_range(REQUEST_FD + 1, ~0u, 0);
	execl(scip, "scip", "cut", leading->what, (char *)NULL);
	err_sys(&err, "execute %s", scip);
	rpc_refuse(USER_FD, &err);
}

int cut_lead(struct connection *connection, const char *what, const ProtobufCMessage *message,
	     struct err *err)
{
	auto_close int file = memfd_create("pbeam-request", MFD_CLOEXEC);
	size_t len = protobuf_c_message_get_packed_size(message);
	auto_free uint8_t *body = malloc(len + 1);
	struct leading leading = {.what = what, .request = file};
	int r = cluster_need(connection->server, err);

	if (r < 0)
		return r;
	if (file < 0 || !body)
		return err_code(err, -ENOMEM, "pass the request on");
	protobuf_c_message_pack(message, body);
	r = io_pwrite_full(file, body, len, 0);
	return r < 0 ? err_code(err, r, "pass the request on")
		     : worker_start(connection, cut_request_lead, &leading, err);
}

int cut_rollback(struct connection *connection, const Pbeam__RollbackRequest *wish, const char *store,
		 struct vpid vpid, struct err *err)
{
	Pbeam__RollbackRequest passed = *wish;
	Pbeam__Target target = PBEAM__TARGET__INIT;

	if (wish->dry_run)
		return err_set(err, -ENOTSUP,
			       "%s: --dry-run is for a job that is on one host, and has its checkpoint there",
			       store);
	if (wish->path[0])
		return err_set(err, -EINVAL, "%s: a cut over several hosts is named by its number: --to N",
			       store);
	target.name = (char *)(uintptr_t)store;
	target.vpid = vpid.n;
	passed.target = &target;
	return cut_lead(connection, "rollback", &passed.base, err);
}
