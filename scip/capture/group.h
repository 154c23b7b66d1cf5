/*
 * The processes of one checkpoint, in the coordinator, and the connections to their scips.
 *
 * A member is asked (group_ask()), then all answers are gathered (group_gather()), so the scips work at the
 * same time. What one answers is kept in the member until the next question. A connection that ends thaws the
 * process, so there is no way to leave anything frozen, not even by being killed.
 */
#ifndef SCIP_CAPTURE_GROUP_H
#define SCIP_CAPTURE_GROUP_H

#include "image/image.h"
#include "namespace/names.h"
#include "proto/control.pb-c.h"
#include "scip/capture/shared_object.h"

struct member {
	struct rpid rpid;
	struct vpid vpid;
	struct rpid scip;
	int sock; /* to its scip, -1 for a zombie */
	bool zombie;
	bool stub;   /* its process is on another host */
	int stopped; /* a stub: by this signal there, 0 not */
	bool frozen;
	bool listed;	/* its children have been looked for */
	bool asked;	/* an answer is to come */
	bool gone;	/* it ended before it was frozen */
	bool precopied; /* in a migration: only untracked memory is dumped, the rest has been sent */
	uint32_t threads;
	struct err problem;	 /* why it did not do what it was asked; code 0 when it did */
	ProtobufCMessage *reply; /* to the last question */
	Pbeam__Process *process; /* owned by the manifest once that has it */
	Pbeam__ScipDumped *dumped;
};

struct group {
	struct names *names;
	struct rpid keeper;
	bool whole_job; /* orphans belong to it as well */
	bool moves;	/* stubs belong to it: else they are refused */
	/* True for a process that does not belong to it although its parent is gone: its stub is on another
	 * host. NULL: none is. */
	bool (*stays)(void *arg, struct vpid vpid);
	void *stays_arg;
	int cancel; /* a signalfd: somebody wants us to stop */
	struct member **v;
	size_t n;
};

/* ---- group.c ---- */
must_check int group_add(struct group *group, const struct name_process *process, struct err *err);
must_check int group_add_zombie(struct group *group, struct rpid rpid);
/* It has memory, threads and descriptors of its own here. */
static inline bool group_has_contents(const struct member *member)
{
	return !member->zombie && !member->stub;
}
struct member *group_find(const struct group *group, struct rpid rpid);
/* It ended before it was frozen: its problem says how that was seen. */
void group_lose(struct member *member);
/* Drops the members that ended; everybody's children are to be looked for again, since they may be zombies
 * now. */
void group_forget_gone(struct group *group);
void group_free(struct group *group);
/* Sends a question. A scip that is gone becomes the member's problem. */
void group_ask(struct member *member, uint32_t type, const ProtobufCMessage *message, const int *fds,
	       int nfds);
/* Waits for all answers, of this kind. 0 when all have come, whatever they say; -ECANCELED, -ETIMEDOUT. */
must_check int group_gather(struct group *group, const ProtobufCMessageDescriptor *kind, int timeout_ms,
			    struct err *err);
/* The first member's problem, as an error. 0 if there is none. */
must_check int group_problem(const struct group *group, struct err *err);
/* -ECANCELED when a signal has come. */
must_check int group_cancelled(const struct group *group, struct err *err);
/* Lets go what is frozen. Failures do not matter: who does not answer is gone. */
void group_thaw(struct group *group);
/* Connections within what is frozen of the group will leave no TIME_WAIT when it ends: the image is to be
 * restored on the same ports. */
void group_abort_connections(const struct group *group);
/* Ends every process, children first, and their connections like that. */
must_check int group_terminate(struct group *group, struct err *err);

/* ---- group_freeze.c ---- */
/* Freezes the target and all that descends from it: parents first, until nothing new appears. */
must_check int group_freeze(struct group *group, struct vpid target, bool alone, struct err *err);

/* ---- group_isolation.c ---- */
/* -ENOTSUP for what shares memory, descriptors or directories with its parent, or has a namespace of its own.
 */
must_check int group_check_isolation(const struct group *group, struct err *err);

/* ---- group_sysv.c ---- */
/* The System V objects that the job has made, after group_dump_shared(): what is attached is among those. */
must_check int group_dump_sysv(struct group *group, struct image_writer *writer, Pbeam__Manifest *manifest,
			       struct err *err);

/* ---- group_shared.c ---- */
/* Up to what size contents of mapped files are saved. */
struct object_external;
struct sharing_limits {
	uint64_t max;
	uint64_t swapped_out; /* host_memory_swapped_out() from before the processes were dumped */
	const struct object_external *external; /* who may say otherwise, or NULL */
	shared_precopy_fn *precopy;		/* chooses what is pre-copied; NULL: nothing is */
	void *precopy_arg;
};
/* Makes manifest->shared of the mappings that the dumps told of, gives them their ids, has the contents
 * dumped. */
must_check int group_dump_shared(struct group *group, struct image_writer *writer, Pbeam__Manifest *manifest,
				 const struct sharing_limits *limits, struct err *err);

/* For a skeleton: lists the objects that limits->precopy chooses in manifest->shared, without pages. Mappings
 * do not refer to them. 0 or -errno. */
must_check int group_list_shared(struct group *group, struct image_writer *writer, Pbeam__Manifest *manifest,
				 const struct sharing_limits *limits, struct err *err);

#endif
