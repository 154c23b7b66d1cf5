/* Inside scip/cut: the leader's view of the parts that are rolled back. */
#ifndef SCIP_CUT_RETURN_H
#define SCIP_CUT_RETURN_H

#include "image/image.h"
#include "scip/cut/lead.h"

struct returning {
	const Pbeam__CutPart *saved;
	char host[LEAD_HOST_MAX]; /* host where it is restored */
	char then[LEAD_HOST_MAX]; /* host it moves to afterwards, "" none */
	char home[LEAD_HOST_MAX]; /* host of the job's console */
	bool revive;		  /* nothing of the job runs there */
	bool ends;		  /* no part: the job's processes on the host end */
	Pbeam__CutPart *own;	  /* `saved`, if it is a copy */
	uint32_t *with;		  /* indices of the parts joined with it */
	size_t nwith;
	int channel;
	Pbeam__MigrateReady *ready;
};

/* ---- return_choose.c ---- */
/* Chooses the checkpoint: sets lead->chosen, number, name and uuid; of a running job also vpid, at and inner.
 */
must_check int return_choose(struct lead *lead, const Pbeam__RollbackRequest *wish, struct err *err);
bool return_has_copy(const Pbeam__LogEntry *entry, const char *host);

/* ---- return_find.c ---- */
/* Opens the manifest of the cut, wherever a copy is; `path` is that of the local one. Sets lead->uuid. */
must_check int return_find_cut(struct lead *lead, char path[PATH_MAX], struct image_reader **manifest,
			       struct err *err);
/* Describes the image of a whole job as lead->alone. `path` is that of the local image or copy. */
must_check int return_find_alone(struct lead *lead, char path[PATH_MAX], struct err *err);
/* Stores the chosen image as STORE_COPY on lead->at. */
must_check int return_bring_copy(struct lead *lead, struct err *err);
/* Brings the images of the part, and of all parts joined with it, to its host. */
must_check int return_bring_images(struct lead *lead, const struct returning *returning, struct err *err);
/* Removes the copies from all hosts, before the user gets the reply. */
void return_drop_copies(struct lead *lead);
/* ---- return_place.c ---- */
/* Lists one entry for each part, after joining those of a job that go to one host, and one for each other
 * host where something of the job runs. Call return_free() for *v in any case. */
must_check int return_place(struct lead *lead, const Pbeam__Cut *cut, const Pbeam__RollbackRequest *wish,
			    struct returning **v, size_t *n, struct err *err);
void return_free(struct returning *v, size_t n);
/* ---- return_join.c ---- */
/* Joins parts of one job on one host into the part with the topmost process; *n decreases. */
must_check int return_join(struct returning *v, size_t *n, struct err *err);

/* True if it has the job's first process: no other part has a stub of that. */
bool return_is_first(const struct returning *returning);
/* ---- return_connect.c ---- */
/* The other part that has the stub of a process, or, with `stubs` false, the process of a stub. NULL if there
 * is none. */
const struct returning *return_find_relation(const struct returning *v, size_t n, const struct returning *own,
					     int32_t vpid, bool stubs);
/* Sends STATE to all parts: which end of each connection calls the other, and where bridges lead. */
must_check int return_connect(const struct lead *lead, const struct returning *v, size_t n, struct err *err);

#endif
