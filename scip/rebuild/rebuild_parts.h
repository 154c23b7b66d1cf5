/* Internal to scip/rebuild: shared by the steps. */
#ifndef SCIP_REBUILD_REBUILD_PARTS_H
#define SCIP_REBUILD_REBUILD_PARTS_H

#include "proto/control.pb-c.h"
#include "proto/keeper.pb-c.h"
#include "scip/object/object.h"
#include "scip/rebuild/inherit.h"
#include "scip/rebuild/plan.h"
#include "scip/rebuild/rebuild.h"
#include "scip/rebuild/scip_link.h"

/* Shared memory that has been made again: a descriptor, or the real id of a System V segment. */
struct shared_made {
	const Pbeam__SharedMemory *saved;
	int fd;	       /* -1 none */
	bool borrowed; /* the descriptor belongs to an object */
	int sysv_id;   /* -1 none */
	bool made;     /* the segment or file did not exist before */
};

/* A semaphore set or message queue of the image. */
struct sysv_object {
	int real;
	bool made; /* it did not exist before */
};

struct rebuild_shared {
	struct shared_made *v;
	size_t n;
};

/* A node of the plan, once it has been made. */
struct made {
	pid_t rpid;			 /* 0: not made yet, or gone */
	int sock;			 /* to its scip, -1 */
	const uint8_t *exe;		 /* the file executed in place of the missing program, or NULL */
	const struct inherit_state *has; /* the pages of the image that the process has already, or NULL */
	bool stub; /* made from the process's own stub: not killed when the restore fails */
};

/* The living parent of a part of a job that is rolled back, and its session: above.c. */
struct above {
	bool found; /* `plan` is known */
	bool lives; /* there is a living parent; else the keeper takes its place */
	int sock;   /* to the parent's scip, which holds it frozen; -1 none */
	struct name_process process;
	pid_t replaces; /* real number of the child that is replaced, 0 if that has ended */
	struct plan_above plan;
	int32_t *groups;
	int32_t foreground; /* foreground group of the session's terminal */
	bool in_foreground; /* that group is among those that are replaced */
	int32_t *gone;	    /* real numbers of the processes that were killed */
	size_t ngone;
	int32_t *ended; /* children of the parent that had ended before */
	size_t nended;
};

/* A process that will be replaced and that has received the request to freeze. */
struct still {
	struct vpid vpid;
	pid_t rpid;
	int sock; /* to its scip, which holds it frozen; -1: it could not be frozen */
};

/* The saved state of the job's terminal, which is set at the commit. */
struct rebuild_terminal {
	ProtobufCBinaryData termios;
	int32_t foreground; /* virtual group, 0: stays as it is */
};

struct rebuild {
	struct names *names;
	struct image_reader *image;
	const Pbeam__Manifest *manifest; /* of the image, or an empty one */
	const struct rebuild_options *options;
	struct object_restore *objects;
	struct rebuild_shared shared;
	struct sysv_object *sysv; /* sets, then queues, in the manifest's order */
	size_t nsysv;
	struct plan plan;
	bool whole; /* a whole job: the first process becomes the job's */
	bool ends;  /* there is no image: the job's processes here end */
	struct above above;
	struct made *made;	      /* one for each node of the plan */
	struct inherit_state *states; /* all of them, owned */
	bool *unverified;	      /* for each process: its fill verifies whole chunks; NULL: for none */
	struct precopied *precopied;  /* owns some of `made` and of `states`, or NULL */
	struct still *still;	      /* replaced.c */
	size_t nstill;
	bool beside; /* the old processes exist until the commit */
	bool committed;
	struct rebuild_terminal *terminals; /* rebuild_beside.c */
	size_t nterminals;
	struct rebuild_obstacles *obstacles; /* failed checks are listed instead of returned; NULL: not */
	uint64_t since;			     /* end of the last phase that was logged */
	struct err *err;
};

/* ---- rebuild_state.c ---- */
void rebuild_init(struct rebuild *rebuild, struct names *names, struct image_reader *image,
		  const struct rebuild_options *options, struct err *err);
void rebuild_destroy(struct rebuild *rebuild);
must_check int rebuild_plan(struct rebuild *rebuild);
/* Allocates rebuild->made for the plan; nothing is made yet. */
must_check int rebuild_begin_made(struct rebuild *rebuild);

/* ---- rebuild_ask.c ---- */
/* Connects to the scip of a husk, once it has one. Returns the descriptor or -errno. */
must_check int rebuild_husk_connect(struct rebuild *rebuild, pid_t rpid);
must_check int rebuild_ask_keeper(struct rebuild *rebuild, uint32_t type, const ProtobufCMessage *request,
				  pid_t *rpid);
/* One system call of the husk of a plan's node. Returns its result, or -errno with the error set. */
must_check int64_t rebuild_husk_call(struct rebuild *rebuild, int node, int64_t nr, const uint64_t args[6]);

/* ---- rebuild_check.c: checks before anything is made ---- */
must_check int rebuild_check_image(struct rebuild *rebuild);
must_check int rebuild_check_numbers(struct rebuild *rebuild);
/* The file that the process's husk executes: the program's own, or scip's if that is gone. */
const char *rebuild_check_executable(const Pbeam__Process *process, char path[4096]);

/* ---- obstacle_list.c ---- */
/* Appends the text of `err` unless it is listed already. 0 or -ENOMEM. */
must_check int rebuild_obstacles_add(struct rebuild_obstacles *list, const struct err *err);
/* In a check that lists obstacles: lists the failure `r` and returns 0. Else returns r. */
must_check int rebuild_obstacle(struct rebuild *rebuild, int r);

/* ---- rebuild_limits.c ---- */
/* Addresses in use, and limits: only while obstacles are listed. */
must_check int rebuild_check_limits(struct rebuild *rebuild);
/* Limits that the program alone exceeds, whatever else the user runs. */
must_check int rebuild_check_ceilings(struct rebuild *rebuild);
/* Refuses a rollback for which memory does not suffice while the processes that it replaces exist. Reports
 * -ENOMEM. */
must_check int rebuild_check_room(struct rebuild *rebuild);
/* The same for processes and threads: -EAGAIN. */
must_check int rebuild_check_tasks(struct rebuild *rebuild);

/* ---- rebuild_vdso.c ---- */
/* Says whether images of this host can be restored here, as far as the vdso is concerned. */
must_check int rebuild_vdso_check(const Pbeam__Host *host, struct err *err);
/* Changes the manifest of a kernel with another vdso to one of this kernel. No effect the second time. */
must_check int rebuild_vdso_adapt(const Pbeam__Manifest *manifest, struct err *err);

/* ---- rebuild_verify.c ---- */
/* Verifies the image, except for the chunks that fills verify while they read them: rebuild->unverified.
 * After the plan and the objects' checks. */
must_check int rebuild_verify_image(struct rebuild *rebuild);

/* ---- rebuild_stub.c ---- */
/* True if the first process has its stub here. */
bool rebuild_stub_find(const struct rebuild *rebuild, struct name_process *out);
/* Returns 1 if the node's process has its stub here, which becomes its husk; 0 if it has none. */
must_check int rebuild_stub_take(struct rebuild *rebuild, int node);
/* True if the node is a stub that leads its session, or is in this group (0: its own), already. */
bool rebuild_stub_is_in_session(const struct rebuild *rebuild, int node);
bool rebuild_stub_is_in_group(const struct rebuild *rebuild, int node, pid_t group);

/* ---- rebuild_shared.c ---- */
must_check int rebuild_shared_make_all(struct rebuild *rebuild);
/* Makes an empty memory file with this one's name. Returns the descriptor or -errno. */
must_check int rebuild_shared_memory_file(const Pbeam__SharedMemory *saved);
/* True if shared memory that others can see has no contents before object_restore_put_back(): files that
 * exist, no System V objects. */
bool rebuild_shared_may_wait(const Pbeam__Manifest *manifest);
/* Gives a segment its saved contents. */
must_check int rebuild_shared_fill_sysv(struct rebuild *rebuild, const struct shared_made *made);
const struct shared_made *rebuild_shared_find(const struct rebuild_shared *shared, uint32_t id);
/* Seals files, and removes segments that were removed while in use: after all processes have mapped them. */
must_check int rebuild_shared_finish(struct rebuild *rebuild);
void rebuild_shared_free(struct rebuild_shared *shared);

/* ---- rebuild_beside.c ---- */
/* Sets rebuild->beside, when the old processes are frozen. */
must_check int rebuild_beside_decide(struct rebuild *rebuild);
/* Frees the numbers of the old processes for the new ones, until rebuild_beside_end(). */
must_check int rebuild_beside_begin(struct rebuild *rebuild);
void rebuild_beside_end(struct rebuild *rebuild, bool committed);
void rebuild_beside_set_terminals(struct rebuild *rebuild);
/* Watches the processes that have been made; after they were killed: waits until they have ended. */
struct pollfd *rebuild_beside_watch_ends(const struct rebuild *rebuild, size_t *n);
void rebuild_beside_await_ends(struct pollfd *ends, size_t n);
void rebuild_beside_free(struct rebuild *rebuild);

/* ---- rebuild_sysv.c ---- */
/* Removes what the job made after the checkpoint, when the whole job is rolled back and its processes are
 * gone. */
must_check int rebuild_sysv_clear(struct rebuild *rebuild);
/* Makes semaphores and queues with their contents; after rebuild_shared_make_all(), before there are
 * processes. */
must_check int rebuild_sysv_make_all(struct rebuild *rebuild);
/* After the commit of a rollback: does what was left out before. Errors are logged. */
void rebuild_sysv_take_over(struct rebuild *rebuild);
/* Removes what was made for a rollback that has failed. */
void rebuild_sysv_undo(struct rebuild *rebuild);
/* Gives the processes their semaphore adjustments; between rebuild_tree_make() and rebuild_fill_all(). */
must_check int rebuild_sysv_give_undo(struct rebuild *rebuild);

/* ---- rebuild_tree.c: carries out the plan ---- */
/* Makes the processes of the plan that rebuild->made lacks. */
must_check int rebuild_tree_make(struct rebuild *rebuild);
/* Kills all processes that were made. */
void rebuild_tree_kill(struct rebuild *rebuild);

/* ---- rebuild_fill.c: the husks become the processes ---- */
/* Gives a process the memory that the children forked next inherit. */
must_check int rebuild_fill_round(struct rebuild *rebuild, int node, int round);
/* Fills all processes. */
must_check int rebuild_fill_all(struct rebuild *rebuild);
/* True for a process with a scip, which awaits its release; false for a zombie and for a helper. */
bool rebuild_is_filled(const struct rebuild *rebuild, int node);
/* After the commit: gives the processes the record locks that the old ones had. Errors are logged; the last
 * one is returned. */
must_check int rebuild_fill_take(struct rebuild *rebuild);
/* Keeps the processes held even when the coordinator is killed. */
must_check int rebuild_fill_keep(struct rebuild *rebuild);
/* From now on `condemned` (fill_signs.h) decides whether the end of the connections makes the processes run,
 * or kills them. */
must_check int rebuild_fill_decide(struct rebuild *rebuild);
/* Releases the processes. */
must_check int rebuild_fill_release(struct rebuild *rebuild);

/* ---- rebuild_diverge.c ---- */
/* Freezes the process behind the restored filter. Returns the connection that holds it, or -errno. */
must_check int rebuild_diverge_hold(const struct name_process *process, uint32_t timeout_ms, struct err *err);

/* ---- replaced.c: the processes that are replaced ---- */
bool replaced_includes(struct rebuild *rebuild, const struct name_process *process);
/* Freezes the processes. If a later step fails, or the coordinator is killed, they continue unchanged. */
must_check int replaced_freeze(struct rebuild *rebuild);
/* Kills them and waits until their names are free; rebuild->above.gone lists them. */
must_check int replaced_kill(struct rebuild *rebuild);
/* Thaws the processes that have not been killed. */
void replaced_close(struct rebuild *rebuild);

/* ---- above.c: the living parent of a part of a job ---- */
/* Looks for the living parent: sets above.lives and above.plan. */
must_check int above_find(struct rebuild *rebuild);
/* Called when the process cannot be forked there: selects the next best place. -EXDEV when none is left. */
must_check int above_miss(struct rebuild *rebuild);
/* Freezes the parent, and puts all other processes of the job behind the restored filter. Afterwards
 * above_commit() or above_close() thaws the parent; after the latter it finds its child killed, if that was.
 */
must_check int above_hold(struct rebuild *rebuild);
/* Makes the new process the parent's child, as if the old one had never been. The parent stays frozen until
 * above_close(). */
must_check int above_commit(struct rebuild *rebuild);
void above_close(struct rebuild *rebuild);

#endif
