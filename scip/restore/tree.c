/*
 * The plan of the tree carried out by the keeper and by husks, and the husks filled and let go.
 *
 * Making is one step after another; filling is at the same time for all, since nothing of it depends on
 * another process but what the coordinator has made before. Until all are filled none is let go, so a failure
 * anywhere leaves nothing behind but the husks, which are killed.
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
#include "scip/restore/coordinate.h"
#include "scip/restore/keeper_protocol.h"

enum { CLEAR_MS = 10000, LOOK_AGAIN_NS = 500000, JOB_MAX = 65536 };

static int ask_keeper(struct coordinate *coordinate, const struct keeper_request *request, pid_t *rpid)
{
	int sock = coordinate->options->keeper_socket;
	struct keeper_reply reply;
	ssize_t n = send(sock, request, sizeof(*request), MSG_NOSIGNAL);

	do
		n = n == sizeof(*request) ? recv(sock, &reply, sizeof(reply), 0) : -1;
	while (n < 0 && errno == EINTR);
	if (n != sizeof(reply))
		return err_set(coordinate->err, -EPIPE, "the keeper of the job does not answer");
	reply.text[sizeof(reply.text) - 1] = 0;
	if (reply.code < 0)
		return err_set(coordinate->err, reply.code, "%s",
			       reply.text[0] ? reply.text : strerror(-reply.code));
	*rpid = reply.rpid;
	return 0;
}

/* One call in the husk; its return value, or the error. */
static int64_t call(struct coordinate *coordinate, int node, int64_t nr, const uint64_t args[6])
{
	Pbeam__ScipCall__One one = PBEAM__SCIP_CALL__ONE__INIT;
	Pbeam__ScipCall__One *ones[1] = {&one};
	Pbeam__ScipCall request = PBEAM__SCIP_CALL__INIT;
	ProtobufCMessage *answer = NULL;
	Pbeam__ScipCalled *called;
	uint64_t copy[6];
	int64_t ret;
	int r;

	memcpy(copy, args, sizeof(copy));
	one.number = nr;
	one.n_args = 6;
	one.args = copy;
	request.n_calls = 1;
	request.calls = ones;
	r = link_call(coordinate->made[node].sock, PBEAM__SCIP_REQUEST__SCIP_RESTORE_CALL, &request.base,
		      &pbeam__scip_called__descriptor, &answer, coordinate->err);
	if (r < 0)
		return r;
	called = (Pbeam__ScipCalled *)(void *)answer;
	ret = called->n_results == 1 ? called->results[0] : -EPROTO;
	message_free(answer);
	if (ret < 0)
		err_code(coordinate->err, (int)ret, "call %ld of vpid %d", (long)nr,
			 coordinate->plan.nodes[node].vpid);
	return ret;
}

static int connect_node(struct coordinate *coordinate, int node, pid_t rpid)
{
	int sock;

	coordinate->made[node].rpid = rpid;
	sock = link_open(coordinate, rpid);
	coordinate->made[node].sock = sock;
	return sock < 0 ? sock : 0;
}

static int step_husk(struct coordinate *coordinate, int node)
{
	struct keeper_request request = {.type = KEEPER_HUSK,
					 .flags = node == 0 ? KEEPER_HUSK_ROOT : 0,
					 .vpid = coordinate->plan.nodes[node].vpid,
					 .exit_signal = coordinate->plan.nodes[node].exit_signal};
	pid_t rpid;
	int r = ask_keeper(coordinate, &request, &rpid);

	return r < 0 ? r : connect_node(coordinate, node, rpid);
}

static int step_fork(struct coordinate *coordinate, int node, int parent)
{
	Pbeam__ScipFork request = PBEAM__SCIP_FORK__INIT;
	ProtobufCMessage *answer = NULL;
	pid_t rpid;
	int r;

	request.vpid = coordinate->plan.nodes[node].vpid;
	request.exit_signal = coordinate->plan.nodes[node].exit_signal;
	r = link_call(coordinate->made[parent].sock, PBEAM__SCIP_REQUEST__SCIP_RESTORE_FORK, &request.base,
		      &pbeam__scip_forked__descriptor, &answer, coordinate->err);
	if (r < 0)
		return r;
	rpid = ((Pbeam__ScipForked *)(void *)answer)->rpid;
	message_free(answer);
	return connect_node(coordinate, node, rpid);
}

static int step_exec(struct coordinate *coordinate, int node)
{
	Pbeam__ScipExec request = PBEAM__SCIP_EXEC__INIT;
	char path[4096];
	const char *what = check_executable(coordinate->plan.nodes[node].process, path);

	request.path.data = (uint8_t *)(uintptr_t)what;
	request.path.len = strlen(what);
	return link_call(coordinate->made[node].sock, PBEAM__SCIP_REQUEST__SCIP_RESTORE_EXEC, &request.base,
			 &pbeam__scip_done__descriptor, NULL, coordinate->err);
}

static int step_exit(struct coordinate *coordinate, int node)
{
	const struct plan_node *planned = &coordinate->plan.nodes[node];
	struct made *made = &coordinate->made[node];
	Pbeam__ScipExit request = PBEAM__SCIP_EXIT__INIT;
	int r;

	request.status = planned->process ? planned->process->exit_status : 0;
	r = link_call(made->sock, PBEAM__SCIP_REQUEST__SCIP_RESTORE_EXIT, &request.base,
		      &pbeam__scip_done__descriptor, NULL, coordinate->err);
	close(made->sock);
	made->sock = -1;
	/* The number of a leader that is gone lives on in its group and session. */
	if (r == 0 && !planned->process && planned->vpid &&
	    names_number_bind(coordinate->names, (struct vpid){planned->vpid}, (struct rpid){made->rpid},
			      coordinate->options->keeper) < 0)
		log_debug("number %d of a group is bound already", planned->vpid);
	if (!planned->process)
		made->rpid = 0;
	return r;
}

static pid_t number_here(struct coordinate *coordinate, int32_t number)
{
	for (int i = 0; i < coordinate->plan.nnodes; i++)
		if (coordinate->plan.nodes[i].vpid == number && coordinate->made[i].rpid)
			return coordinate->made[i].rpid;
	return names_real(coordinate->names, (struct vpid){number}).n;
}

/* Makes the session, and its terminal, if it had one, its controlling one: that only its leader can do, and
 * those forked later inherit it. */
static int step_setsid(struct coordinate *coordinate, int node)
{
	int tty = object_restore_controlling_tty(coordinate->objects,
						 (struct vpid){coordinate->plan.nodes[node].vpid});
	int64_t ret = call(coordinate, node, SYS_setsid, remote_args(0)), pidfd, fd;

	if (ret < 0 || tty < 0)
		return ret < 0 ? (int)ret : 0;
	pidfd = call(coordinate, node, SYS_pidfd_open, remote_args((uint64_t)getpid()));
	if (pidfd < 0)
		return (int)pidfd;
	fd = call(coordinate, node, SYS_pidfd_getfd, remote_args((uint64_t)pidfd, (uint64_t)tty));
	ret = fd < 0 ? fd : call(coordinate, node, SYS_ioctl, remote_args((uint64_t)fd, TIOCSCTTY));
	if (fd >= 0 && ret >= 0)
		ret = call(coordinate, node, SYS_close, remote_args((uint64_t)fd));
	if (ret >= 0)
		ret = call(coordinate, node, SYS_close, remote_args((uint64_t)pidfd));
	return ret < 0 ? err_wrap(coordinate->err, (int)ret, "controlling terminal") : 0;
}

static int do_step(struct coordinate *coordinate, const struct plan_step *step, pid_t *ended)
{
	uint64_t args[6] = {0};
	int64_t nr;

	switch (step->kind) {
	case PLAN_HUSK:
		return step_husk(coordinate, step->node);
	case PLAN_FORK:
		return step_fork(coordinate, step->node, step->other);
	case PLAN_EXEC:
		return step_exec(coordinate, step->node);
	case PLAN_EXIT:
		*ended = coordinate->made[step->node].rpid;
		return step_exit(coordinate, step->node);
	case PLAN_SETSID:
		return step_setsid(coordinate, step->node);
	case PLAN_SETPGID:
		nr = SYS_setpgid;
		args[1] = step->number ? (uint64_t)number_here(coordinate, step->number) : 0;
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
	default:
		return err_set(coordinate->err, -EINVAL, "unknown step %d", (int)step->kind);
	}
	nr = call(coordinate, step->kind == PLAN_REAP ? step->other : step->node, nr, args);
	return nr < 0 ? (int)nr : 0;
}

/* Numbers that are the keeper's: the session it lends, and the parent that the first process had. */
static void bind_keeper(struct coordinate *coordinate, int32_t number, pid_t rpid)
{
	if (number > 0 && number != rpid &&
	    names_number_bind(coordinate->names, (struct vpid){number}, (struct rpid){rpid},
			      coordinate->options->keeper) < 0)
		log_debug("number %d cannot stand for the keeper", number);
}

int tree_make(struct coordinate *coordinate)
{
	const struct plan *plan = &coordinate->plan;
	const Pbeam__Process *root = coordinate->manifest->processes[0];
	pid_t keeper = coordinate->options->keeper.n, ended = 0;
	int r = 0;

	coordinate->made = calloc((size_t)plan->nnodes, sizeof(*coordinate->made));
	if (!coordinate->made)
		return err_code(coordinate->err, -ENOMEM, "processes");
	for (int i = 0; i < plan->nnodes; i++)
		coordinate->made[i].sock = -1;
	bind_keeper(coordinate, plan->keeper_session, getsid(keeper));
	if (root->vppid != root->vpid)
		bind_keeper(coordinate, root->vppid, keeper);
	for (int i = 0; i < plan->nsteps && r == 0; i++) {
		r = do_step(coordinate, &plan->steps[i], &ended);
		if (r < 0)
			err_wrap(coordinate->err, r, "make vpid %d", plan->nodes[plan->steps[i].node].vpid);
	}
	return r;
}

static bool is_filled(const struct coordinate *coordinate, int node)
{
	const Pbeam__Process *process = coordinate->plan.nodes[node].process;

	return process && process->state != PBEAM__PROCESS__STATE__ZOMBIE;
}

static const Pbeam__Object *find_object(const Pbeam__Manifest *manifest, uint32_t id)
{
	size_t low = 0, high = manifest->n_objects;

	while (low < high) {
		size_t middle = (low + high) / 2;

		if (manifest->objects[middle]->id == id)
			return manifest->objects[middle];
		if (manifest->objects[middle]->id < id)
			low = middle + 1;
		else
			high = middle;
	}
	for (size_t i = 0; i < manifest->n_objects; i++)
		if (manifest->objects[i]->id == id)
			return manifest->objects[i];
	return NULL;
}

/* Everything that one fill needs; the arrays are freed by the caller. */
struct fill_request {
	Pbeam__ScipFill message;
	Pbeam__FillFd *fds;
	Pbeam__FillFd **list;
	Pbeam__Object **late;
	Pbeam__SharedMemory **shared;
};

static int add_descriptors(struct coordinate *coordinate, const Pbeam__Process *process,
			   struct fill_request *fill)
{
	Pbeam__ScipFill *message = &fill->message;

	for (size_t i = 0; i < process->n_descriptors; i++) {
		const Pbeam__Descriptor *descriptor = process->descriptors[i];
		const Pbeam__Object *object = find_object(coordinate->manifest, descriptor->object);
		Pbeam__FillFd *fd = &fill->fds[message->n_fds];
		bool listed = false;
		int source;

		if (!object)
			return err_set(coordinate->err, -EINVAL,
				       "vpid %d: fd %d is of object %u, which is not there", process->vpid,
				       descriptor->fd, descriptor->object);
		source = object_restore_get(coordinate->objects, descriptor->object, coordinate->err);
		if (source < 0)
			return source;
		pbeam__fill_fd__init(fd);
		fd->source = source;
		fd->fd = descriptor->fd;
		fd->cloexec = descriptor->cloexec;
		fill->list[message->n_fds++] = fd;
		for (size_t n = 0; n < message->n_late; n++)
			listed = listed || fill->late[n] == object;
		if (!listed && object_wants_install(object))
			fill->late[message->n_late++] = (Pbeam__Object *)(uintptr_t)object;
	}
	return 0;
}

static int add_shared(struct coordinate *coordinate, const Pbeam__Process *process, struct fill_request *fill)
{
	Pbeam__ScipFill *message = &fill->message;

	for (size_t i = 0; i < process->memory->n_mappings; i++) {
		uint32_t id = process->memory->mappings[i]->shared_id;
		const struct shared_made *made = id ? shared_find(&coordinate->shared, id) : NULL;
		Pbeam__FillFd *fd = &fill->fds[message->n_fds];
		bool listed = false;

		for (size_t n = 0; n < message->n_shared; n++)
			listed = listed || fill->shared[n]->id == id;
		if (!made || listed)
			continue;
		pbeam__fill_fd__init(fd);
		fd->source = made->sysv_id >= 0 ? made->sysv_id : made->fd;
		fd->fd = -1;
		fd->shared_id = id;
		fill->list[message->n_fds++] = fd;
		fill->shared[message->n_shared++] = (Pbeam__SharedMemory *)(uintptr_t)made->saved;
	}
	return 0;
}

static int send_fill(struct coordinate *coordinate, int node)
{
	const Pbeam__Process *process = coordinate->plan.nodes[node].process;
	size_t most = process->n_descriptors + process->memory->n_mappings + 1;
	auto_free Pbeam__FillFd *fds = calloc(most, sizeof(*fds));
	auto_free Pbeam__FillFd **list = calloc(most, sizeof(Pbeam__FillFd *));
	auto_free Pbeam__Object **late = calloc(most, sizeof(Pbeam__Object *));
	auto_free Pbeam__SharedMemory **shared = calloc(most, sizeof(Pbeam__SharedMemory *));
	struct fill_request fill = {PBEAM__SCIP_FILL__INIT, fds, list, late, shared};
	int image = image_reader_fd(coordinate->image), r;

	if (!fds || !list || !late || !shared)
		return err_code(coordinate->err, -ENOMEM, "descriptors of vpid %d", process->vpid);
	r = add_descriptors(coordinate, process, &fill);
	if (r == 0)
		r = add_shared(coordinate, process, &fill);
	if (r < 0)
		return r;
	fill.message.process = (Pbeam__Process *)(uintptr_t)process;
	fill.message.fds = list;
	fill.message.late = late;
	fill.message.shared = shared;
	fill.message.coordinator_rpid = getpid();
	return link_ask(coordinate->made[node].sock, PBEAM__SCIP_REQUEST__SCIP_RESTORE_FILL,
			&fill.message.base, &image, 1, coordinate->err);
}

static int gather(struct coordinate *coordinate)
{
	int r = 0;

	for (int i = 0; i < coordinate->plan.nnodes && r == 0; i++)
		if (is_filled(coordinate, i))
			r = link_answer(coordinate->made[i].sock, &pbeam__scip_done__descriptor, NULL,
					coordinate->err);
	return r;
}

int tree_fill(struct coordinate *coordinate)
{
	int r = 0;

	for (int i = 0; i < coordinate->plan.nnodes && r == 0; i++)
		if (is_filled(coordinate, i))
			r = send_fill(coordinate, i);
	return r < 0 ? r : gather(coordinate);
}

int tree_run(struct coordinate *coordinate)
{
	int r = 0;

	for (int i = 0; i < coordinate->plan.nnodes && r == 0; i++)
		if (is_filled(coordinate, i))
			r = link_ask(coordinate->made[i].sock, PBEAM__SCIP_REQUEST__SCIP_RESTORE_RUN, NULL,
				     NULL, 0, coordinate->err);
	return r < 0 ? r : gather(coordinate);
}

/* How far below `root` the process is, or below the job's first one with `root` 0; -1 if it does not descend
 * from it. */
static int depth_below(struct coordinate *coordinate, struct name_process process, struct vpid root)
{
	for (int depth = 0; depth < JOB_MAX; depth++) {
		if (root.n > 0 && process.vpid.n == root.n)
			return depth;
		if (process.parent.n <= 0 ||
		    names_process_get(coordinate->names, process.parent, &process) < 0)
			return root.n > 0 ? -1 : depth;
	}
	return -1;
}

struct victim {
	pid_t rpid;
	int depth;
};

static int compare_depth(const void *a, const void *b)
{
	return ((const struct victim *)a)->depth - ((const struct victim *)b)->depth;
}

/* Sends to all that are left, parents first. How many there are, zombies included. */
static int signal_all(struct coordinate *coordinate, bool whole_job, int sig)
{
	struct rpid keeper = coordinate->options->keeper;
	int room = names_process_list(coordinate->names, keeper, NULL, 0) + 64, n, left = 0;
	auto_free struct name_process *list = calloc((size_t)room, sizeof(*list));
	auto_free struct victim *victims = calloc((size_t)room, sizeof(*victims));

	if (!list || !victims)
		return err_code(coordinate->err, -ENOMEM, "list of processes");
	n = names_process_list(coordinate->names, keeper, list, room);
	for (int i = 0; i < n && i < room; i++) {
		int depth = depth_below(coordinate, list[i],
					whole_job ? (struct vpid){0} : coordinate->options->replace);

		if (depth >= 0)
			victims[left++] = (struct victim){list[i].rpid.n, depth};
	}
	qsort(victims, (size_t)left, sizeof(*victims), compare_depth);
	for (int i = 0; i < left; i++)
		if (victims[i].rpid > 1)
			kill(victims[i].rpid, sig);
	return left;
}

/* Stopped first, so that none sees another's end and acts upon it: removes its files, say. */
int tree_clear(struct coordinate *coordinate)
{
	const struct keeper_request request = {.type = KEEPER_REPLACE};
	uint64_t end = io_now_ns(CLOCK_MONOTONIC) + CLEAR_MS * 1000000ull;
	struct name_job job;
	bool whole_job;
	pid_t none;
	int r;

	whole_job = names_job_get(coordinate->names, coordinate->options->keeper, &job) < 0 ||
		    job.root.n == coordinate->options->replace.n;
	r = ask_keeper(coordinate, &request, &none);
	if (r < 0)
		return r;
	r = signal_all(coordinate, whole_job, SIGSTOP);
	while (r > 0 && (r = signal_all(coordinate, whole_job, SIGKILL)) > 0) {
		const struct timespec pause = {0, LOOK_AGAIN_NS};

		if (io_now_ns(CLOCK_MONOTONIC) > end)
			return err_set(coordinate->err, -ETIMEDOUT,
				       "the processes to be replaced do not end");
		nanosleep(&pause, NULL);
	}
	return r;
}

void tree_abandon(struct coordinate *coordinate)
{
	for (int i = coordinate->plan.nnodes - 1; i >= 0 && coordinate->made; i--) {
		if (coordinate->made[i].sock >= 0)
			close(coordinate->made[i].sock);
		coordinate->made[i].sock = -1;
		if (coordinate->made[i].rpid > 1)
			kill(coordinate->made[i].rpid, SIGKILL);
		coordinate->made[i].rpid = 0;
	}
}
