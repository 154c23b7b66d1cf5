/* Inside scip/cut: the parts of a cut on their way back. */
#ifndef SCIP_CUT_RETURN_H
#define SCIP_CUT_RETURN_H

#include "image/image.h"
#include "scip/cut/lead.h"

struct returning {
	const Pbeam__CutPart *saved;
	char host[LEAD_HOST_MAX]; /* where it is rolled back */
	char then[LEAD_HOST_MAX]; /* and where it goes afterwards, "" nowhere */
	char home[LEAD_HOST_MAX]; /* of the job's console */
	bool revive;		  /* nothing of it runs */
	bool ends;		  /* it is no part: what runs of the job there goes */
	Pbeam__CutPart *own;	  /* `saved` if it is not the manifest's */
	uint32_t *with;		  /* the parts that are one with it: their indices */
	size_t nwith;
	int channel;
	Pbeam__MigrateReady *ready;
};

/* ---- return_choose.c ---- */
/* Which checkpoint it is: lead->chosen, number, name, uuid; of what runs also vpid, at, inner. */
must_check int return_choose(struct lead *lead, const Pbeam__RollbackRequest *wish, struct err *err);
bool return_has_copy(const Pbeam__LogEntry *entry, const char *host);

/* ---- return_find.c ---- */
/* The manifest of the cut, wherever a copy is; `path` is that of the one here. lead->uuid is set. */
must_check int return_find_cut(struct lead *lead, char path[PATH_MAX], struct image_reader **manifest,
			       struct err *err);
/* The image of a whole job instead, as lead->alone. `path` is that of the one here, or the copy. */
must_check int return_find_alone(struct lead *lead, char path[PATH_MAX], struct err *err);
/* The chosen image becomes STORE_COPY on lead->at. */
must_check int return_bring_copy(struct lead *lead, struct err *err);
/* The images of the part, or of all that are one with it, are on its host afterwards. */
must_check int return_bring_images(struct lead *lead, const struct returning *returning, struct err *err);
/* Copies that were brought go, on all hosts. Before the user is answered: he may look. */
void return_drop_copies(struct lead *lead);
/* ---- return_place.c ---- */
/* One for each part, those of a job that go to one host being one, and then for each host where else
 * something of it runs. *v is the caller's, for return_free(), in any case. */
must_check int return_place(struct lead *lead, const Pbeam__Cut *cut, const Pbeam__RollbackRequest *wish,
			    struct returning **v, size_t *n, struct err *err);
void return_free(struct returning *v, size_t n);
/* ---- return_join.c ---- */
/* Parts of one job on one host become one, that of the first process the first; *n is less afterwards. */
must_check int return_join(struct returning *v, size_t *n, struct err *err);

/* It has the job's first process: no other part has a stub of that. */
bool return_is_first(const struct returning *returning);
/* ---- return_connect.c ---- */
/* The part that has the stub of a process, or (stubs false) the process that it is of; NULL when it is no
 * other part's. */
const struct returning *return_kin(const struct returning *v, size_t n, const struct returning *own,
				   int32_t vpid, bool stubs);
/* STATE to all: which ends of which connections call each other, and which bridges lead where. */
must_check int return_connect(const struct lead *lead, const struct returning *v, size_t n, struct err *err);

#endif
