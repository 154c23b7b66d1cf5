#include "scip/capture/group.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/io.h"
#include "base/log.h"
#include "proto/frame.h"
#include "proto/message.h"
#include "proto/rpc.h"
#include "scip/object/object.h"

enum { ANSWER_MS = 30000, GATHER_EVENTS = 64 };

static struct member *new_member(struct group *group, struct rpid rpid, struct vpid vpid)
{
	struct member **v = reallocarray(group->v, group->n + 1, sizeof(struct member *));
	struct member *member;

	if (!v)
		return NULL;
	group->v = v;
	member = calloc(1, sizeof(*member));
	if (!member)
		return NULL;
	member->rpid = rpid;
	member->vpid = vpid;
	member->sock = -1;
	if (u64_map_set(&group->members, (uint64_t)rpid.n, group->n) < 0) {
		free(member);
		return NULL;
	}
	group->v[group->n++] = member;
	return member;
}

void group_lose(struct member *member)
{
	log_debug("checkpoint: vpid %d is left out: %s", member->vpid.n, member->problem.text);
	member->gone = true;
}

int group_add(struct group *group, const struct name_process *process, struct err *err)
{
	struct member *member;

	if (process->state == NAME_STATE_STUB && (!group->moves || !group->n))
		return err_set(err, -EREMOTE,
			       "vpid %d, which belongs to it, is on another host; bring it back first, or "
			       "checkpoint the whole job",
			       process->vpid.n);
	member = new_member(group, process->rpid, process->vpid);
	if (!member)
		return -ENOMEM;
	member->scip = process->scip;
	member->stub = process->state == NAME_STATE_STUB;
	member->sock = frame_connect_to("scip", process->scip.n, &member->problem);
	if (member->sock < 0)
		group_lose(member);
	return 0;
}

int group_add_zombie(struct group *group, struct rpid rpid)
{
	struct member *member = new_member(group, rpid, names_virtual(group->names, rpid));

	if (!member)
		return -ENOMEM;
	member->zombie = member->listed = true;
	return 0;
}

struct member *group_find(const struct group *group, struct rpid rpid)
{
	size_t at = u64_map_find(&group->members, (uint64_t)rpid.n);
	struct member *member = at < group->n ? group->v[at] : NULL;

	return member && member->rpid.n == rpid.n && !member->gone ? member : NULL;
}

static void forget_reply(struct member *member)
{
	message_free(member->reply);
	member->reply = NULL;
}

static void free_member(struct member *member)
{
	forget_reply(member);
	message_free(member->dumped);
	if (member->sock >= 0)
		close(member->sock);
	free(member);
}

int group_forget_gone(struct group *group)
{
	size_t n = 0;
	int r = 0;
	bool any = false;

	for (size_t i = 0; i < group->n; i++) {
		if (!group->v[i]->gone) {
			group->v[n++] = group->v[i];
			continue;
		}
		free_member(group->v[i]);
		any = true;
	}
	group->n = n;
	for (size_t i = 0; i < n && any && r == 0; i++) {
		group->v[i]->listed = group->v[i]->zombie;
		r = u64_map_set(&group->members, (uint64_t)group->v[i]->rpid.n, i);
	}
	return r;
}

void group_free(struct group *group)
{
	for (size_t i = 0; i < group->n; i++)
		free_member(group->v[i]);
	free(group->v);
	u64_map_free(&group->members);
	group->v = NULL;
	group->n = 0;
}

static void group_note_end(struct member *member)
{
	err_set(&member->problem, -ESRCH, "vpid %d ended in the middle of the checkpoint; try again",
		member->vpid.n);
}

void group_ask(struct member *member, uint32_t type, const ProtobufCMessage *message, const int *fds,
	       int nfds)
{
	int r;

	forget_reply(member);
	err_clear(&member->problem);
	r = member->sock < 0 ? -EPIPE : frame_send(member->sock, type, message, fds, nfds, &member->problem);
	member->asked = r == 0;
	if (r == -EPIPE || r == -ECONNRESET)
		group_note_end(member);
	else if (r < 0)
		err_wrap(&member->problem, r, "vpid %d", member->vpid.n);
}

/* Receives a reply, or finds that the scip has ended. */
static void receive_reply(struct member *member, const ProtobufCMessageDescriptor *kind)
{
	int r = rpc_receive(member->sock, "a scip", PBEAM__RPC__RPC_REPLY, kind, &member->reply,
			    &member->problem);

	member->asked = false;
	if (r == -EPIPE)
		group_note_end(member);
}

int group_cancelled(const struct group *group, struct err *err)
{
	struct pollfd poll_cancel = {.fd = group->cancel, .events = POLLIN};

	if (group->cancel < 0 || poll(&poll_cancel, 1, 0) <= 0)
		return 0;
	return err_set(err, -ECANCELED, "the checkpoint was interrupted; the program goes on");
}

/* Watches the connections that a reply is due on, each for one event, and the signalfd (NULL). Returns how
 * many replies are due, or -errno. With poll(2), which looks at all of them each time, n replies would cost n
 * * n.
 */
static int watch_replies(const struct group *group, int epoll)
{
	struct epoll_event event = {.events = EPOLLIN};
	int due = 0;

	if (group->cancel >= 0 && epoll_ctl(epoll, EPOLL_CTL_ADD, group->cancel, &event) < 0)
		return -errno;
	for (size_t i = 0; i < group->n; i++) {
		if (!group->v[i]->asked)
			continue;
		event = (struct epoll_event){.events = EPOLLIN | EPOLLONESHOT, .data.ptr = group->v[i]};
		if (epoll_ctl(epoll, EPOLL_CTL_ADD, group->v[i]->sock, &event) < 0)
			return -errno;
		due++;
	}
	return due;
}

static int report_late(const struct group *group, struct err *err)
{
	for (size_t i = 0; i < group->n; i++)
		if (group->v[i]->asked)
			return err_set(err, -ETIMEDOUT,
				       "vpid %d does not stop (it may wait in the kernel for a device, or in "
				       "vfork for its "
				       "child); try again later",
				       group->v[i]->vpid.n);
	return err_set(err, -ETIMEDOUT, "a process does not answer");
}

int group_gather(struct group *group, const ProtobufCMessageDescriptor *kind, int timeout_ms, struct err *err)
{
	auto_close int epoll = epoll_create1(EPOLL_CLOEXEC);
	uint64_t end = io_now_ns(CLOCK_MONOTONIC) + (uint64_t)timeout_ms * 1000000u;
	int due = epoll < 0 ? -errno : watch_replies(group, epoll);

	if (due < 0)
		return err_code(err, due, "wait for answers");
	while (due > 0) {
		struct epoll_event events[GATHER_EVENTS];
		uint64_t now = io_now_ns(CLOCK_MONOTONIC);
		int ready = now >= end ? 0
				       : epoll_wait(epoll, events, GATHER_EVENTS,
						    (int)((end - now) / 1000000u) + 1);

		if (ready < 0 && errno == EINTR)
			continue;
		if (ready < 0)
			return err_sys(err, "wait for answers");
		if (ready == 0)
			return report_late(group, err);
		for (int i = 0; i < ready; i++) {
			if (!events[i].data.ptr)
				return group_cancelled(group, err);
			receive_reply(events[i].data.ptr, kind);
			due--;
		}
	}
	return 0;
}

int group_problem(const struct group *group, struct err *err)
{
	for (size_t i = 0; i < group->n; i++)
		if (group->v[i]->problem.code && !group->v[i]->gone)
			return err_set(err, group->v[i]->problem.code, "%s", group->v[i]->problem.text);
	return 0;
}

void group_thaw(struct group *group)
{
	int cancel = group->cancel;

	for (size_t i = 0; i < group->n; i++) {
		struct member *member = group->v[i];

		if (member->asked) {
			/* Its reply is no longer awaited: the end of the connection thaws the process. What
			 * was asked may be to stay frozen at that end (SCIP_KEEP), so it is thawed before. */
			if (frame_send(member->sock, PBEAM__SCIP_REQUEST__SCIP_THAW, NULL, NULL, 0, NULL) < 0)
				log_debug("vpid %d is thawed by its scip", member->vpid.n);
			close(member->sock);
			member->sock = -1;
			member->asked = member->frozen = false;
		} else if (member->frozen) {
			group_ask(member, PBEAM__SCIP_REQUEST__SCIP_THAW, NULL, NULL, 0);
		}
	}
	group->cancel = -1;
	if (group_gather(group, &pbeam__scip_done__descriptor, ANSWER_MS, NULL) == 0)
		for (size_t i = 0; i < group->n; i++)
			group->v[i]->frozen = false;
	group->cancel = cancel;
}

void group_abort_connections(const struct group *group)
{
	struct rpid *rpids = calloc(group->n, sizeof(*rpids));

	for (size_t i = 0; i < group->n && rpids; i++)
		rpids[i] = group->v[i]->frozen ? group->v[i]->rpid : (struct rpid){0};
	if (rpids)
		object_abort_connections(rpids, group->n);
	free(rpids);
}

int group_terminate(struct group *group, struct err *err)
{
	int cancel = group->cancel, r = 0;

	group_abort_connections(group);
	group->cancel = -1;
	for (size_t i = group->n; i-- > 0 && r >= 0;) {
		if (!group->v[i]->frozen)
			continue;
		group_ask(group->v[i], PBEAM__SCIP_REQUEST__SCIP_TERMINATE, NULL, NULL, 0);
		r = group_gather(group, &pbeam__scip_done__descriptor, ANSWER_MS, err);
		group->v[i]->frozen = false;
	}
	group->cancel = cancel;
	return r;
}
