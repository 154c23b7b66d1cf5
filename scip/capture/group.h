/*
 * The processes of a capture, in the coordinator, with the connections to their scips.
 *
 * group_ask() sends requests, group_gather() receives all replies, so that the scips work in parallel. A
 * member keeps its reply until the next request. The end of a connection thaws the process, so that a
 * coordinator that is killed leaves nothing frozen.
 */
#ifndef SCIP_CAPTURE_GROUP_H
#define SCIP_CAPTURE_GROUP_H

#include "base/u64_map.h"
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
	int stopped; /* of a stub: the signal that has stopped its process, or 0 */
	bool frozen;
	bool listed;	/* its children have been listed */
	bool asked;	/* a reply is due */
	bool gone;	/* it ended before it was frozen */
	bool precopied; /* in a migration: only untracked memory is dumped, the rest has been sent */
	uint32_t threads;
	struct err problem;	 /* why the last request failed; code 0 if it did not */
	ProtobufCMessage *reply; /* to the last request */
	Pbeam__Process *process; /* owned by the manifest once it is added there */
	Pbeam__ScipDumped *dumped;
};

struct group {
	struct names *names;
	struct rpid keeper;
	bool whole_job; /* orphans of the job belong to it as well */
	bool moves;	/* stubs belong to it; otherwise they are refused */
	/* True for an orphan that does not belong to the group, because its stub is on another host. NULL:
	 * none. */
	bool (*stays)(void *arg, struct vpid vpid);
	void *stays_arg;
	int cancel; /* signalfd of SIGTERM, SIGINT and SIGHUP, or -1 */
	struct member **v;
	size_t n;
	struct u64_map members; /* real number -> index in `v`; may be that of an earlier member */
};

/* ---- group.c ---- */
must_check int group_add(struct group *group, const struct name_process *process, struct err *err);
must_check int group_add_zombie(struct group *group, struct rpid rpid);
/* True if the process has memory, threads and descriptors on this host. */
static inline bool group_has_contents(const struct member *member)
{
	return !member->zombie && !member->stub;
}
struct member *group_find(const struct group *group, struct rpid rpid);
/* Marks a member that ended before it was frozen; its problem says how that was noticed. */
void group_lose(struct member *member);
/* Removes the members that have ended. The children of all others must be listed again, as zombies may be
 * among them now. 0 or -ENOMEM. */
must_check int group_forget_gone(struct group *group);
void group_free(struct group *group);
/* Sends a request. If the scip is gone the member's problem says so. */
void group_ask(struct member *member, uint32_t type, const ProtobufCMessage *message, const int *fds,
	       int nfds);
/* Waits for all replies, which are messages of this kind. 0 when all have arrived, failures included;
 * -ECANCELED or -ETIMEDOUT. */
must_check int group_gather(struct group *group, const ProtobufCMessageDescriptor *kind, int timeout_ms,
			    struct err *err);
/* Reports the first member's problem as an error. 0 if there is none. */
must_check int group_problem(const struct group *group, struct err *err);
/* -ECANCELED if a signal has arrived, else 0. */
must_check int group_cancelled(const struct group *group, struct err *err);
/* Resumes the frozen processes. A scip that does not reply has ended, and its process with it. */
void group_thaw(struct group *group);
/* Makes connections between frozen members end without TIME_WAIT, so that the image can be restored on the
 * same ports. */
void group_abort_connections(const struct group *group);
/* Kills all processes, children first, after group_abort_connections(). 0 or -errno. */
must_check int group_terminate(struct group *group, struct err *err);

/* ---- group_freeze.c ---- */
/* Freezes the target and, unless `alone`, its descendants: parents first, until no new process appears. 0 or
 * -errno. */
must_check int group_freeze(struct group *group, struct vpid target, bool alone, struct err *err);

/* ---- group_isolation.c ---- */
/* Refuses with -ENOTSUP a process that shares memory, descriptors or directories with its parent, or is in a
 * namespace of its own. */
must_check int group_check_isolation(const struct group *group, struct err *err);

/* ---- group_sysv.c ---- */
/* Dumps the System V objects that the job has made, after group_dump_shared(), which dumps attached
 * segments. 0 or -errno. */
must_check int group_dump_sysv(struct group *group, struct image_writer *writer, Pbeam__Manifest *manifest,
			       struct err *err);

/* ---- group_shared.c ---- */
/* Limits on what is saved of shared memory. */
struct object_external;
struct sharing_limits {
	uint64_t max;
	uint64_t swapped_out; /* host_memory_swapped_out() from before the processes were dumped */
	const struct object_external *external; /* may raise or lower the limit of a file, or NULL */
	shared_precopy_fn *precopy;		/* chooses what is pre-copied; NULL: nothing is */
	void *precopy_arg;
};
/* Makes manifest->shared from the shared mappings that the scips have reported, numbers the objects, and has
 * the contents dumped. 0 or -errno. */
must_check int group_dump_shared(struct group *group, struct image_writer *writer, Pbeam__Manifest *manifest,
				 const struct sharing_limits *limits, struct err *err);

/* For a skeleton: lists the objects that limits->precopy chooses in manifest->shared, without pages. Mappings
 * do not refer to them. 0 or -errno. */
must_check int group_list_shared(struct group *group, struct image_writer *writer, Pbeam__Manifest *manifest,
				 const struct sharing_limits *limits, struct err *err);

#endif
