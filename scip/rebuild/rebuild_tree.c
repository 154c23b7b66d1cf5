/*
 * Carries out the plan of the process tree by the keeper and by husks, one step after another. (They are
 * filled all at the same time: rebuild_fill.c.) None is released before all are filled. So a failure leaves
 * nothing behind but husks, which are killed.
 */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "base/log.h"
#include "proto/message.h"
#include "scip/rebuild/precopied_parts.h"

enum { FORKS_AT_ONCE = 32 };

/* Connects to the husk's scip, unless that has been done. Not as soon as the husk is forked: it is taken over
 * while its parent forks the next one. */
static int connect_node(struct rebuild *rebuild, int node)
{
	struct made *made = &rebuild->made[node];

	if (made->rpid && made->sock < 0)
		made->sock = rebuild_husk_connect(rebuild, made->rpid);
	return made->rpid && made->sock < 0 ? made->sock : 0;
}

/* True if its parent is on another host, or its stub has the parent. */
static bool has_remote_parent(const struct rebuild *rebuild, int node)
{
	const Pbeam__Process *process = rebuild->plan.nodes[node].process;

	if (!rebuild->options->external || !process)
		return false;
	for (size_t i = 0; node > 0 && !process->remote_parent && i < rebuild->manifest->n_processes; i++)
		if (rebuild->manifest->processes[i]->vpid == process->vppid)
			return false;
	return true;
}

static int step_husk(struct rebuild *rebuild, int node)
{
	Pbeam__HuskRequest request = PBEAM__HUSK_REQUEST__INIT;
	pid_t rpid;
	int r = rebuild_stub_take(rebuild, node);

	if (r)
		return r < 0 ? r : 0; /* 1: the stub is the husk */
	request.vpid = rebuild->plan.nodes[node].vpid;
	request.exit_signal = rebuild->plan.nodes[node].exit_signal;
	request.root = node == 0 && rebuild->whole;
	if (has_remote_parent(rebuild, node))
		request.remote_parent = rebuild->plan.nodes[node].process->vppid;
	r = rebuild_ask_keeper(rebuild, PBEAM__KEEPER_REQUEST__KEEPER_HUSK, &request.base, &rpid);
	if (r == 0)
		rebuild->made[node].rpid = rpid;
	return r;
}

/* `sock` is connected to the scip of the forking process. */
static int ask_fork(struct rebuild *rebuild, int node, int sock, pid_t replaces)
{
	Pbeam__ScipFork request = PBEAM__SCIP_FORK__INIT;

	request.vpid = rebuild->plan.nodes[node].vpid;
	request.exit_signal = rebuild->plan.nodes[node].exit_signal;
	request.replaces = replaces;
	return scip_link_ask(sock, PBEAM__SCIP_REQUEST__SCIP_RESTORE_FORK, &request.base, NULL, 0,
			     rebuild->err);
}

static int await_fork(struct rebuild *rebuild, int node, int sock, struct err *err)
{
	ProtobufCMessage *answer = NULL;
	int r = scip_link_answer(sock, &pbeam__scip_forked__descriptor, &answer, err);

	if (r < 0)
		return r;
	rebuild->made[node].rpid = ((Pbeam__ScipForked *)(void *)answer)->rpid;
	message_free(answer);
	return 0;
}

static int fork_node(struct rebuild *rebuild, int node, int sock, pid_t replaces)
{
	int r = ask_fork(rebuild, node, sock, replaces);

	return r < 0 ? r : await_fork(rebuild, node, sock, rebuild->err);
}

/* Has a process fork `n` nodes one after another. The requests are sent ahead of the answers, so that its
 * scip does not wait for the coordinator in between. All answers are taken, after a failure too: they have
 * the numbers of children that must be killed. */
static int fork_nodes(struct rebuild *rebuild, const struct plan_step *steps, int n)
{
	const struct made *parent = &rebuild->made[steps->other];
	int asked = 0, r = 0;

	for (; asked < n && r == 0; asked++) {
		rebuild->made[steps[asked].node].has = parent->has;
		r = ask_fork(rebuild, steps[asked].node, parent->sock, 0);
	}
	asked -= r < 0;
	for (int i = 0; i < asked; i++) {
		struct err more = ERR_INIT;
		int one = await_fork(rebuild, steps[i].node, parent->sock, r < 0 ? &more : rebuild->err);

		r = r < 0 ? r : one;
	}
	return r;
}

/* Counts the steps from `steps` on in which the same process forks, up to FORKS_AT_ONCE. */
static int forks_in_row(const struct plan_step *steps, const struct plan_step *end)
{
	int n = 0;

	while (steps + n < end && n < FORKS_AT_ONCE && steps[n].kind == PLAN_FORK &&
	       steps[n].other == steps->other)
		n++;
	return n;
}

/* Returns how many steps were done, or -errno. */
static int step_forks(struct rebuild *rebuild, const struct plan_step *steps, const struct plan_step *end)
{
	int n = forks_in_row(steps, end);
	int r = precopied_hide(rebuild, steps->other, true), shown;

	if (r == 0)
		r = fork_nodes(rebuild, steps, n);
	shown = precopied_hide(rebuild, steps->other, false);
	return r < 0 ? r : shown < 0 ? shown : n;
}

static int step_exec(struct rebuild *rebuild, int node)
{
	Pbeam__ScipExec request = PBEAM__SCIP_EXEC__INIT;
	char path[4096];
	const char *what = rebuild_check_executable(rebuild->plan.nodes[node].process, path);

	request.path.data = (uint8_t *)(uintptr_t)what;
	request.path.len = strlen(what);
	rebuild->made[node].has = NULL;
	return scip_link_call(rebuild->made[node].sock, PBEAM__SCIP_REQUEST__SCIP_RESTORE_EXEC, &request.base,
			      &pbeam__scip_done__descriptor, NULL, rebuild->err);
}

static int step_exit(struct rebuild *rebuild, int node)
{
	const struct plan_node *planned = &rebuild->plan.nodes[node];
	struct made *made = &rebuild->made[node];
	Pbeam__ScipExit request = PBEAM__SCIP_EXIT__INIT;
	int r;

	request.status = planned->process ? planned->process->exit_status : 0;
	r = scip_link_call(made->sock, PBEAM__SCIP_REQUEST__SCIP_RESTORE_EXIT, &request.base,
			   &pbeam__scip_done__descriptor, NULL, rebuild->err);
	close(made->sock);
	made->sock = -1;
	/* The number of a leader that is gone survives in its group and session. */
	if (r == 0 && !planned->process && planned->vpid &&
	    names_number_bind(rebuild->names, (struct vpid){planned->vpid}, (struct rpid){made->rpid},
			      rebuild->options->keeper) < 0)
		log_debug("number %d of a group is bound already", planned->vpid);
	if (!planned->process)
		made->rpid = 0;
	return r;
}

static pid_t number_here(struct rebuild *rebuild, int32_t number)
{
	for (int i = 0; i < rebuild->plan.nnodes; i++)
		if (rebuild->plan.nodes[i].vpid == number && rebuild->made[i].rpid)
			return rebuild->made[i].rpid;
	return names_real(rebuild->names, (struct vpid){number}).n;
}

/* Makes the session and its controlling terminal, if it had one. Only the leader can do this; children forked
 * later inherit it. */
static int step_setsid(struct rebuild *rebuild, int node)
{
	const struct vpid session = {rebuild->plan.nodes[node].vpid};
	/* Pre-copied processes, made without objects, have none. */
	int tty = rebuild->objects ? object_restore_controlling_tty(rebuild->objects, session) : -1;
	int64_t ret = rebuild_husk_call(rebuild, node, SYS_setsid, remote_args(0)), pidfd, fd;

	if (ret < 0 || tty < 0)
		return ret < 0 ? (int)ret : 0;
	pidfd = rebuild_husk_call(rebuild, node, SYS_pidfd_open, remote_args((uint64_t)getpid()));
	if (pidfd < 0)
		return (int)pidfd;
	fd = rebuild_husk_call(rebuild, node, SYS_pidfd_getfd, remote_args((uint64_t)pidfd, (uint64_t)tty));
	ret = fd < 0 ? fd : rebuild_husk_call(rebuild, node, SYS_ioctl, remote_args((uint64_t)fd, TIOCSCTTY));
	if (fd >= 0 && ret >= 0)
		ret = rebuild_husk_call(rebuild, node, SYS_close, remote_args((uint64_t)fd));
	if (ret >= 0)
		ret = rebuild_husk_call(rebuild, node, SYS_close, remote_args((uint64_t)pidfd));
	return ret < 0 ? err_wrap(rebuild->err, (int)ret, "controlling terminal") : 0;
}

static int do_step(struct rebuild *rebuild, const struct plan_step *step, pid_t *ended)
{
	uint64_t args[6] = {0};
	int64_t nr;
	int r = connect_node(rebuild, step->node);

	if (r == 0 && step->kind == PLAN_REAP)
		r = connect_node(rebuild, step->other);
	if (r < 0)
		return r;
	switch (step->kind) {
	case PLAN_HUSK:
		return rebuild->above.sock >= 0
			       ? fork_node(rebuild, step->node, rebuild->above.sock, rebuild->above.replaces)
			       : step_husk(rebuild, step->node);
	case PLAN_EXEC:
		return step_exec(rebuild, step->node);
	case PLAN_MEMORY:
		return rebuild_fill_round(rebuild, step->node, step->number);
	case PLAN_EXIT:
		*ended = rebuild->made[step->node].rpid;
		return step_exit(rebuild, step->node);
	case PLAN_SETSID:
		if (rebuild_stub_is_in_session(rebuild, step->node))
			return 0;
		return step_setsid(rebuild, step->node);
	case PLAN_SETPGID:
		nr = SYS_setpgid;
		args[1] = step->number ? (uint64_t)number_here(rebuild, step->number) : 0;
		if (rebuild_stub_is_in_group(rebuild, step->node, (pid_t)args[1]))
			return 0;
		break;
	case PLAN_SUBREAPER:
		nr = SYS_prctl;
		args[0] = PR_SET_CHILD_SUBREAPER;
		args[1] = (uint64_t)step->number;
		break;
	case PLAN_REAP:
		nr = SYS_wait4;
		args[0] = (uint64_t)*ended;
		args[2] = __WALL;
		break;
	case PLAN_FORK: /* step_forks() */
	default:
		return err_set(rebuild->err, -EINVAL, "unknown step %d", (int)step->kind);
	}
	nr = rebuild_husk_call(rebuild, step->kind == PLAN_REAP ? step->other : step->node, nr, args);
	return nr < 0 ? (int)nr : 0;
}

/* Numbers that stand for the keeper: the session that it lends, and the parent of the first process. */
static void bind_keeper(struct rebuild *rebuild, int32_t number, pid_t rpid)
{
	if (number > 0 && number != rpid &&
	    names_number_bind(rebuild->names, (struct vpid){number}, (struct rpid){rpid},
			      rebuild->options->keeper) < 0)
		log_debug("number %d cannot stand for the keeper", number);
}

/* A group whose leader, the parent, is not among the processes: a helper gives it its number. */
static bool is_planned(const struct plan *plan, int32_t number)
{
	for (int i = 0; i < plan->nnodes; i++)
		if (plan->nodes[i].vpid == number)
			return true;
	return false;
}

int rebuild_tree_make(struct rebuild *rebuild)
{
	const struct plan *plan = &rebuild->plan;
	const Pbeam__Process *root = rebuild->manifest->processes[0];
	pid_t keeper = rebuild->options->keeper.n, ended = 0;
	bool begins = !rebuild->made;
	int r = begins ? rebuild_begin_made(rebuild) : 0;

	if (r < 0)
		return r;
	if (begins && !rebuild->above.found)
		bind_keeper(rebuild, plan->keeper_session, getsid(keeper));
	if (begins && rebuild->above.sock < 0 && !has_remote_parent(rebuild, 0) &&
	    root->vppid != root->vpid && !is_planned(plan, root->vppid))
		bind_keeper(rebuild, root->vppid, keeper);
	for (int i = 0; i < plan->nsteps && r >= 0;) {
		const struct plan_step *step = &plan->steps[i];

		if (step->kind == PLAN_FORK) {
			r = connect_node(rebuild, step->other);
			if (r == 0)
				r = step_forks(rebuild, step, plan->steps + plan->nsteps);
		} else {
			r = do_step(rebuild, step, &ended);
			r = r < 0 ? r : 1;
		}
		if (r < 0)
			err_wrap(rebuild->err, r, "make vpid %d", plan->nodes[step->node].vpid);
		i += r;
	}
	r = r < 0 ? r : 0;
	for (int i = 0; i < plan->nnodes && r == 0; i++)
		if (plan->nodes[i].process && plan->nodes[i].process->state != PBEAM__PROCESS__STATE__ZOMBIE)
			r = connect_node(rebuild, i);
	return r;
}

/* Else the scip of a process that has been told SCIP_DECIDE waits until the files are settled, before it sees
 * the end of the process. */
static void tell_given_up(const struct made *made)
{
	if (scip_link_ask(made->sock, PBEAM__SCIP_REQUEST__SCIP_GIVE_UP, NULL, NULL, 0, NULL) < 0)
		log_debug("process %d has ended already", made->rpid);
}

/* Waits for the children that were forked from the stub before the restore failed. The stub never waits,
 * and the program would find them when it returns. */
static void bereave_stub(struct rebuild *rebuild)
{
	struct err *why = rebuild->err, unsaid = ERR_INIT;

	rebuild->err = &unsaid;
	for (int i = 1; i < rebuild->plan.nnodes; i++) {
		struct vpid vpid = {rebuild->plan.nodes[i].vpid};
		struct rpid rpid = {rebuild->made[i].rpid};

		if (rpid.n <= 1 || rebuild_husk_call(rebuild, 0, SYS_wait4,
						     remote_args((uint64_t)rpid.n, 0, __WALL, 0)) != rpid.n)
			continue;
		names_process_remove(rebuild->names, vpid, rpid);
		names_number_release(rebuild->names, vpid, rpid);
	}
	rebuild->err = why;
}

void rebuild_tree_kill(struct rebuild *rebuild)
{
	struct made *made = rebuild->made;

	for (int i = rebuild->plan.nnodes - 1; i >= 0 && made; i--) {
		if (made[i].rpid <= 1 || made[i].stub)
			continue;
		if (made[i].sock >= 0 && rebuild->beside)
			tell_given_up(&made[i]);
		if (made[i].sock >= 0)
			close(made[i].sock);
		made[i].sock = -1;
		kill(made[i].rpid, SIGKILL);
	}
	if (rebuild->plan.nnodes && made && made[0].stub && made[0].sock >= 0)
		bereave_stub(rebuild);
	for (int i = rebuild->plan.nnodes - 1; i >= 0 && made; i--) {
		if (made[i].stub && made[i].sock >= 0 &&
		    scip_link_call(made[i].sock, PBEAM__SCIP_REQUEST__SCIP_STUB, NULL,
				   &pbeam__scip_done__descriptor, NULL, NULL) < 0)
			log_debug("the stub of vpid %d reverts by itself", rebuild->plan.nodes[i].vpid);
		if (made[i].sock >= 0)
			close(made[i].sock);
		made[i].sock = -1;
		made[i].rpid = 0;
	}
}
