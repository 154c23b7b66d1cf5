#include "scip/job/recall.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "base/log.h"
#include "proto/ask.h"
#include "proto/message.h"
#include "proto/rpc.h"

enum { DEPTH_MAX = 4096 };

struct recall {
	struct request *request; /* NULL: the job ends */
	struct job *job;
	struct vpid vpid; /* the process that comes back */
	uint8_t *wish;	  /* the request, packed */
	size_t len;
};

static void recall_forget_request(struct request *request)
{
	struct recall *recall = request->saving;

	recall->request = NULL;
	request->saving = NULL;
}

static bool is_descendant(struct names *names, struct name_process process, struct vpid target)
{
	for (int depth = 0; depth < DEPTH_MAX && !process.remote_parent; depth++) {
		if (process.parent.n == target.n)
			return true;
		if (process.parent.n <= 0 || names_process_get(names, process.parent, &process) < 0)
			return false;
	}
	return false;
}

/* A descendant with a stub here that is on that host; 0 for none. */
static struct vpid recall_find_descendant(const struct job *job, struct vpid target, const char *host)
{
	auto_free struct name_process *all = NULL;
	int n = names_snapshot(job->names, job->entry.keeper, &all);
	char place[NAME_TEXT_MAX];

	for (int i = 0; i < n; i++)
		if (all[i].state == NAME_STATE_STUB && is_descendant(job->names, all[i], target) &&
		    names_place_find(job->names, all[i].vpid, place) == 0 && !strcmp(place, host))
			return all[i].vpid;
	return (struct vpid){0};
}

/* In a process of its own, which may block. */
_Noreturn static void recall_main(struct job *job, struct vpid vpid, int out)
{
	Pbeam__MigrateRequest wish = PBEAM__MIGRATE_REQUEST__INIT;
	Pbeam__Target target = PBEAM__TARGET__INIT;
	ProtobufCMessage *reply = NULL;
	char own[NAME_TEXT_MAX];
	struct err err = ERR_INIT;
	sigset_t none;
	int sock = -1, r;

	job_close_private(job);
	prctl(PR_SET_NAME, "scip-recall");
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	target.vpid = vpid.n;
	wish.target = &target;
	wish.host = own;
	r = names_cluster(job->names, own) ? 0 : err_set(&err, -ENOTCONN, "this host is in no cluster");
	if (r == 0)
		r = sock = ask_open("scip " PBEAM_VERSION, &err);
	if (r >= 0)
		r = ask_message(sock, PBEAM__DAEMON_REQUEST__DAEMON_MIGRATE, &wish.base, NULL,
				&pbeam__migrate_reply__descriptor, &reply, &err);
	if (r < 0)
		rpc_refuse(out, &err);
	else
		r = rpc_reply(out, NULL, &err);
	_exit(r < 0);
}

static void on_answer(void *arg, int fd)
{
	struct recall *recall = arg;
	struct request *request = recall->request;
	Pbeam__MigrateRequest *wish = NULL;
	struct err err = ERR_INIT;
	int r = rpc_receive(fd, "the process that calls it back", PBEAM__RPC__RPC_REPLY, NULL, NULL, &err);

	loop_unwatch(&recall->job->loop, fd);
	close(fd);
	if (request)
		request->saving = NULL;
	if (request && request->fd >= 0) {
		if (r < 0)
			r = err_wrap(&err, r, "vpid %d, which descends from it and must come back first",
				     recall->vpid.n);
		else
			wish = pbeam__migrate_request__unpack(NULL, recall->len, recall->wish);
		if (wish)
			r = request_migrate(request, &wish->base, &err);
		if (r < 0)
			request_refuse(request, &err);
		message_free(wish);
	} else if (request) {
		request_idle(request);
	}
	free(recall->wish);
	free(recall);
}

/* Forks the process. Returns the socket that its reply comes from, or -errno. */
static int recall_start(struct job *job, struct vpid vpid, struct err *err)
{
	int ends[2];
	pid_t pid;

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) < 0)
		return err_sys(err, "call vpid %d back", vpid.n);
	pid = fork();
	if (pid == 0) {
		close(ends[0]);
		recall_main(job, vpid, ends[1]);
	}
	close(ends[1]);
	if (pid > 0)
		return ends[0];
	close(ends[0]);
	return err_sys(err, "call vpid %d back", vpid.n);
}

int recall_begin(struct request *request, const Pbeam__MigrateRequest *wish, struct err *err)
{
	struct job *job = request->job;
	struct vpid vpid = {0};
	struct recall *recall;
	int fd, r;

	if (!wish->alone && !wish->dry_run)
		vpid = recall_find_descendant(job, request_target(job, wish->target), wish->host);
	if (!vpid.n)
		return 0;
	recall = calloc(1, sizeof(*recall));
	if (recall) {
		recall->len = pbeam__migrate_request__get_packed_size(wish);
		recall->wish = malloc(recall->len + 1);
	}
	if (!recall || !recall->wish) {
		free(recall);
		return err_code(err, -ENOMEM, "take the request");
	}
	recall->request = request;
	recall->job = job;
	recall->vpid = vpid;
	pbeam__migrate_request__pack(wish, recall->wish);
	r = fd = recall_start(job, vpid, err);
	if (r >= 0) {
		r = loop_watch(&job->loop, fd, on_answer, recall);
		if (r < 0)
			close(fd);
	}
	if (r < 0) {
		free(recall->wish);
		free(recall);
		return err->code ? r : err_code(err, r, "wait for vpid %d", vpid.n);
	}
	log_info("vpid %d, which is on %s already, is called back first", vpid.n, wish->host);
	request->saving = recall;
	request->forget = recall_forget_request;
	request->cancels = false;
	return 1;
}
