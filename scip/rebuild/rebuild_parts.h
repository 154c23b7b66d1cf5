/* Inside scip/rebuild: the coordinator's parts. */
#ifndef SCIP_REBUILD_REBUILD_PARTS_H
#define SCIP_REBUILD_REBUILD_PARTS_H

#include "proto/control.pb-c.h"
#include "scip/object/object.h"
#include "scip/rebuild/inherit.h"
#include "scip/rebuild/plan.h"
#include "scip/rebuild/rebuild.h"

/* Shared memory as made again: a descriptor of ours, or the real id of a SysV segment. */
struct shared_made {
	const Pbeam__SharedMemory *saved;
	int fd;	       /* -1 none */
	bool borrowed; /* the descriptor is an object's */
	int sysv_id;   /* -1 none */
	bool made;     /* the segment or file was not there before */
	bool waits;    /* its contents are put back when all is filled */
};

struct rebuild_shared {
	struct shared_made *v;
	size_t n;
};

/* A node of the plan as it is being made. */
struct made {
	pid_t rpid;			 /* 0: not made (yet, or any more) */
	int sock;			 /* to its scip, -1 */
	const uint8_t *exe;		 /* what it executed instead of its missing program, or NULL */
	const struct inherit_state *has; /* its memory, if it is some of the image's */
	bool stub;			 /* its own stub: not to be killed when the restore fails */
};

/* What is above the first process of a part of a job that is rolled back, its living parent above all:
 * above.c. */
struct above {
	bool found; /* `plan` is known */
	bool lives; /* there is one; else the keeper takes its place */
	int sock;   /* to its scip, which has it frozen; -1 none */
	struct name_process process;
	pid_t replaces; /* the real number of the child that is replaced, 0 when that is gone already */
	struct plan_above plan;
	int32_t *groups;
	int32_t foreground; /* group in the foreground of the session's terminal */
	bool in_foreground; /* ... and it is one of those that are replaced */
	int32_t *gone;	    /* real numbers of what was killed */
	size_t ngone;
	int32_t *ended; /* children of the parent that had ended before */
	size_t nended;
};

/* One of those that are to be replaced. */
struct still {
	struct vpid vpid;
	pid_t rpid;
	int sock; /* to its scip, which has it frozen; -1: it does not stand still */
};

struct rebuild {
	struct names *names;
	struct image_reader *image;
	const Pbeam__Manifest *manifest;
	const struct rebuild_options *options;
	struct object_restore *objects;
	struct rebuild_shared shared;
	struct plan plan;
	bool whole; /* a whole job: the first process becomes the job's */
	bool ends;  /* it goes, and nothing comes */
	struct above above;
	struct made *made;	      /* one for each node of the plan */
	struct inherit_state *states; /* all that there are */
	bool *unverified;	      /* of each process: that its fill checks whole chunks; NULL: of none */
	struct precopied *precopied;  /* what of `made` was made ahead, and `states` point into; or NULL */
	struct still *still; /* those that are to be replaced and were asked to stand still: clear.c */
	size_t nstill;
	struct err *err;
};

/* ---- rebuild.c ---- */
bool rebuild_is_whole(struct names *names, const struct rebuild_options *options);
must_check int rebuild_plan(struct rebuild *rebuild);
void rebuild_close(struct rebuild *rebuild);
void rebuild_prepare(void);
/* rebuild->made, for the plan: nothing is made yet. */
must_check int rebuild_begin_made(struct rebuild *rebuild);

/* ---- link.c: one question and its answer ---- */
/* Connects to a scip. The descriptor or -errno. */
must_check int scip_link_connect(struct rpid scip, struct err *err);
/* Connects to the scip of a process and has it frozen, until the connection ends. The descriptor or -errno.
 */
must_check int scip_link_freeze(const struct name_process *process, uint32_t timeout_ms, struct err *err);
/* Connects to the scip of a husk, once that has one. The descriptor or -errno. */
must_check int scip_link_open(struct rebuild *rebuild, pid_t rpid);
must_check int scip_link_ask(int sock, uint32_t type, const ProtobufCMessage *message, const int *fds,
			     int nfds, struct err *err);
/* The answer, of this kind; *out (may be NULL) is the caller's. A refusal is the error that it tells. */
must_check int scip_link_answer(int sock, const ProtobufCMessageDescriptor *kind, ProtobufCMessage **out,
				struct err *err);
must_check int scip_link_call(int sock, uint32_t type, const ProtobufCMessage *message,
			      const ProtobufCMessageDescriptor *kind, ProtobufCMessage **out,
			      struct err *err);

/* ---- check.c: all that can be refused before anything is made ---- */
must_check int rebuild_check_image(struct rebuild *rebuild);
must_check int rebuild_check_numbers(struct rebuild *rebuild);
/* The file that the process's husk is to execute: its own, or ours when it is gone. */
const char *rebuild_check_executable(const Pbeam__Process *process, char path[4096]);

/* ---- verify.c ---- */
/* Every byte of the image, but for what the fills check while they read it: rebuild->unverified. After the
 * plan and the objects' checks. */
must_check int rebuild_verify_image(struct rebuild *rebuild);

/* ---- stub.c ---- */
/* The first process has its stub here. */
bool rebuild_stub_find(const struct rebuild *rebuild, struct name_process *out);
/* 1: the node's process has its stub here, which is its husk now; 0: it has none. */
must_check int rebuild_stub_take(struct rebuild *rebuild, int node);
/* The node is a stub that leads its session, or is in this group (0: its own), already. */
bool rebuild_stub_is_in_session(const struct rebuild *rebuild, int node);
bool rebuild_stub_is_in_group(const struct rebuild *rebuild, int node, pid_t group);

/* ---- shared.c ---- */
must_check int rebuild_shared_make_all(struct rebuild *rebuild);
/* An empty memory file as this one was, with its name; -errno. */
must_check int rebuild_shared_memory_file(const Pbeam__SharedMemory *saved);
/* True if rebuild_shared_put_back() may write to what others can see when all is filled
 * (rebuild->unverified), not rebuild_shared_make_all(): files that exist, and no System V objects. */
bool rebuild_shared_may_wait(const Pbeam__Manifest *manifest);
must_check int rebuild_shared_put_back(struct rebuild *rebuild);
const struct shared_made *rebuild_shared_find(const struct rebuild_shared *shared, uint32_t id);
/* Seals, and segments that were removed while in use: after all processes have mapped them. */
must_check int rebuild_shared_finish(struct rebuild *rebuild);
void rebuild_shared_free(struct rebuild_shared *shared);

/* ---- sysv.c ---- */
/* Removes what the job made after the checkpoint: when it is all rolled back, its processes gone. */
must_check int rebuild_sysv_clear(struct rebuild *rebuild);
/* Semaphores and queues with their contents; after rebuild_shared_make_all(), before there are processes. */
must_check int rebuild_sysv_make_all(struct rebuild *rebuild);
/* What the processes' ends do to semaphores; between rebuild_tree_make() and rebuild_fill(). */
must_check int rebuild_sysv_give_undo(struct rebuild *rebuild);

/* ---- tree.c: the plan is carried out ---- */
/* Makes what the plan says, beside what rebuild->made has already. */
must_check int rebuild_tree_make(struct rebuild *rebuild);
/* One system call of the husk of a plan's node; what it returns, or -errno with the error told. */
must_check int64_t rebuild_tree_call(struct rebuild *rebuild, int node, int64_t nr, const uint64_t args[6]);
struct keeper_request;
/* One question to the keeper, and its answer. */
must_check int rebuild_ask_keeper(struct rebuild *rebuild, const struct keeper_request *request, pid_t *rpid);
/* Kills whatever was made. */
void rebuild_tree_kill(struct rebuild *rebuild);

/* ---- rebuild_fill.c: the husks become the processes ---- */
/* A process gets the memory that those forked next take over. */
must_check int rebuild_fill_round(struct rebuild *rebuild, int node, int round);
/* All get all that is missing. */
must_check int rebuild_fill(struct rebuild *rebuild);
/* ... and are let go. */
must_check int rebuild_release(struct rebuild *rebuild);
/* They stay held when we are killed. */
must_check int rebuild_keep(struct rebuild *rebuild);

/* ---- diverge.c ---- */
/* The process, frozen, behind the restored filter. The connection that holds it, or -errno. */
must_check int rebuild_diverge_hold(const struct name_process *process, uint32_t timeout_ms, struct err *err);

/* ---- clear.c: what is to be replaced ---- */
/* True if the process is one of those. */
bool replaced_includes(struct rebuild *rebuild, const struct name_process *process);
/* Freezes them and takes the second options->step; where that fails, or we are killed, they go on as they
 * were. */
must_check int replaced_freeze(struct rebuild *rebuild);
/* Then: kills them and waits until their names are free; rebuild->above.gone tells who they were. */
must_check int replaced_kill(struct rebuild *rebuild);
/* They are gone, or go on. */
void replaced_close(struct rebuild *rebuild);

/* ---- above.c: the living parent of a part of a job ---- */
/* Looks for it: above.lives, above.plan. */
must_check int above_find(struct rebuild *rebuild);
/* The process could not be forked there: the next best place, or -EXDEV when there is no other. */
must_check int above_miss(struct rebuild *rebuild);
/* Freezes it, and tells all other processes of the job that numbers diverge. From here on it must be given
 * free: by above_commit(), or by above_close(), after which it finds its child killed, if that was. */
must_check int above_hold(struct rebuild *rebuild);
/* The new process is its child, the old one has never been. It stays frozen until above_close(). */
must_check int above_commit(struct rebuild *rebuild);
void above_close(struct rebuild *rebuild);

#endif
