/*
 * The steps that bring processes back from an image, under the same virtual names.
 *
 * They run in a coordinator, a child of the job's keeper. The drivers call them in this order:
 *
 *   rebuild_open    takes over the processes that were pre-copied, if there are any
 *   rebuild_check   refuses everything that can be refused; nothing has been changed
 *   rebuild_stop    the processes to be replaced, and a living parent, are frozen
 *   rebuild_clear   their numbers are set aside (or, in the old order, they are killed)
 *   rebuild_make    objects, then husks in the right places of the process tree
 *   rebuild_fill    the husks become the saved processes; all of them are held
 *   rebuild_commit  of a rollback: from here on it has happened; the replaced processes are killed
 *   rebuild_hold    of a migration or cut: they stay held even when the coordinator is killed. For a part of
 *                   a cut it is the vote: what is replaced stays frozen as well
 *   rebuild_commit_part  of a part of a cut, once it is decided: the replaced processes are killed
 *   rebuild_run     they are adopted by a living parent, and run
 *
 * A rollback is a migration onto the same host. The old processes stand still, whole, with all that they own,
 * until the new ones are complete:
 *   - Numbers: the old ones' are set aside in the name table, so that the new ones can be bound to them
 *     (names_replace_begin()). The parent of a part of a job has the new child on trial (above.c).
 *   - Files change as a transaction with a journal (image/file_undo.h).
 *   - Sockets: a listening socket is the same open file description for both; a UDP port is bound twice; TCP
 *     connections between processes of the image get other ports (object_borrow.c).
 *   - The job's terminal and its streams belong to the keeper; its settings are changed after the commit.
 * The commit is one store, or for several parts one entry of the registry (rebuild_commit.c). Whatever fails
 * before it, and whoever is killed (the keeper excepted, whose end ends the job), the old processes go on as
 * if nothing had happened. What cannot exist twice yet (rebuild_beside_decide() has the list) needs the old
 * order: such processes are killed in rebuild_clear(), and from there on there is no way back to them.
 *
 * After any failure before the commit rebuild_undo() kills whatever was made, and what is frozen goes on at
 * rebuild_close(). The image is never written to.
 *
 * A step returns 0 or a negative errno, and puts the error where rebuild_open() was told.
 */
#ifndef SCIP_REBUILD_REBUILD_H
#define SCIP_REBUILD_REBUILD_H

#include "image/image.h"
#include "namespace/names.h"
#include "proto/control.pb-c.h"
#include "scip/fill/fill_signs.h"

struct object_external;
struct precopied;
struct rebuild;

struct rebuild_options {
	const char *path; /* of the image, for messages */
	bool force;
	bool old_end_first; /* a rollback: the old processes are killed before the new ones are made */
	const int *console; /* 3 descriptors for the job's standard streams, -1 none */
	int keeper_socket;  /* to the keeper: proto/keeper.proto */
	struct vpid
		replace; /* a rollback: this process and its descendants are replaced; 0 for none. Unless the
			    process is the job's first, the new one becomes a child of the living parent */
	struct rpid keeper;
	bool joins; /* the job's first process exists already, here or on another host, and the first process
		       of this image is a different one */
	bool part;  /* one of several parts that are rolled back together: replaces all that the keeper has */
	bool trusted; /* the image is in memory or has been verified: its digests are not checked */
	const struct object_external *external; /* descriptions with another end elsewhere, or NULL */
	struct precopied *precopied;		/* taken over, or NULL */
	const int32_t *precopied_vpids;		/* the processes of `precopied` that have not changed since */
	size_t nprecopied;
	struct fill_signs *signs;
};
struct rebuild_result {
	struct vpid root;
	uint32_t processes;
};

/* `image` NULL: the replaced processes end and nothing takes their place, except the stub that belongs to the
 * console; the steps after rebuild_clear() then do nothing. The caller keeps image, options and err until
 * rebuild_close(). options->precopied is taken in every case. On failure *out is NULL. */
must_check int rebuild_open(struct rebuild **out, struct names *names, struct image_reader *image,
			    const struct rebuild_options *options, struct err *err);
must_check int rebuild_check(struct rebuild *rebuild);
must_check int rebuild_stop(struct rebuild *rebuild);
must_check int rebuild_clear(struct rebuild *rebuild);
must_check int rebuild_make(struct rebuild *rebuild);
must_check int rebuild_fill(struct rebuild *rebuild);
/* No effect without processes that are replaced, and in the old order. A failure is one before the commit. */
must_check int rebuild_commit(struct rebuild *rebuild);
must_check int rebuild_hold(struct rebuild *rebuild);
/* After the commit. Failures are logged. No effect in the old order. */
void rebuild_commit_part(struct rebuild *rebuild);
must_check int rebuild_run(struct rebuild *rebuild);
/* rebuild_run() after a commit: the processes exist nowhere else any more. Failures are logged, and every
 * process that can run does. */
void rebuild_run_committed(struct rebuild *rebuild);
/* Kills all processes that were made. Returns `r`, the failure of a step, with the image's name put before
 * its error. */
must_check int rebuild_undo(struct rebuild *rebuild, int r);
struct rebuild_result rebuild_result(const struct rebuild *rebuild);
void rebuild_close(struct rebuild *rebuild);

/* ---- rebuild_settle.c ---- */
struct rebuild_settling {
	struct rpid keeper;
	int keeper_socket;
	struct fill_signs *signs;
	bool ends; /* the part has no image */
};
/* In another coordinator, after that of a part of a cut was killed: carries out what was decided. The job
 * then consists of the new processes (`committed`) or the old ones, and they run. It may be repeated after it
 * was killed itself. Failures are logged. */
void rebuild_settle(struct names *names, const struct rebuild_settling *settling, bool committed);

/* ---- rebuild_check.c ---- */
/* Refuses an image whose processor, kernel or user do not fit this host. */
must_check int rebuild_check_host(const Pbeam__Host *host, uint32_t uid, struct err *err);

/* ---- rebuild_diverge.c ---- */
/* Puts all processes of the job on this host behind the restored filter, so that they translate names; each
 * is frozen for a moment. `skip` (may be NULL) excludes processes. A process that cannot be stopped now, in
 * vfork for instance, is left out. */
typedef bool (*rebuild_skip_fn)(void *arg, const struct name_process *process);
must_check int rebuild_diverge(struct names *names, struct rpid keeper, rebuild_skip_fn skip, void *arg);

#endif
