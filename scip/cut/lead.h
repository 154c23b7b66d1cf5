/* Inside scip/cut: the leader of a cut. */
#ifndef SCIP_CUT_LEAD_H
#define SCIP_CUT_LEAD_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "proto/cluster.pb-c.h"
#include "proto/cut.pb-c.h"
#include "proto/daemon.pb-c.h"

enum { LEAD_HOST_MAX = 64, LEAD_NAME_MAX = 64 };

/* A host with a channel to its images. */
struct lead_host {
	char name[LEAD_HOST_MAX];
	int channel;
	Pbeam__CutReply *has; /* of a rollback: what images it has, or NULL */
};

struct lead_part {
	uint32_t index; /* from 1 */
	char host[LEAD_HOST_MAX];
	char uuid[40], job[LEAD_NAME_MAX]; /* the job's */
	int32_t vpid;
	int channel;
	bool frozen;
	Pbeam__CutReply *reply; /* to the last request */
	uint64_t *ids;		/* of the connections that leave it, in order; 0: to the outside */
	size_t nids;
	Pbeam__CutReply *relations; /* with its stubs and guests */
	Pbeam__CutReply *bridged;   /* with its bridges */
	Pbeam__CutReply *outside;   /* with the ends that are reset */
	Pbeam__CutReply *saved;	    /* with what it has saved */
};

struct lead {
	int user; /* the connection to answer on */
	bool answered;
	char name[LEAD_NAME_MAX]; /* of the checkpoints: STATE/NAME */
	char uuid[40];		  /* the job that the checkpoints belong to, "" for a group */
	bool group;
	int32_t vpid; /* not a group's: of the tree's first process; of a rollback 0 when it has ended */
	char own[LEAD_HOST_MAX];
	Pbeam__HostList *hosts;
	uint32_t number;
	/* Of a rollback: */
	Pbeam__ProcessList *processes;	/* of all hosts */
	Pbeam__CheckpointLog *log;	/* likewise */
	const Pbeam__LogEntry *chosen;	/* one of them */
	char at[LEAD_HOST_MAX];		/* where `vpid` is, "" nowhere */
	bool inner;			/* it is not the first process of its job */
	bool copied;			/* there are copies that are to go */
	Pbeam__Cut *alone;		/* of the image of a whole job, made as if for a cut of one part, */
	char alone_host[LEAD_HOST_MAX]; /* and the host that has it; else "" */
	uint32_t keep;
	struct lead_host *known;
	size_t nknown;
	struct lead_part *parts;
	size_t nparts;
};

/* ---- lead.c ---- */
/* One request to pbeamd. The reply is freed with message_free(). NULL: *err has the reason. */
void *lead_ask(uint32_t type, const ProtobufCMessage *request, const ProtobufCMessageDescriptor *reply,
	       struct err *err);
/* The processes of all hosts. */
Pbeam__ProcessList *lead_list(struct err *err);
/* Opens a channel to the image store of a host. Returns the descriptor, the caller's, or -errno. */
must_check int lead_open_store(const char *host, struct err *err);
/* The host's channel, opened when it is needed first. -errno. */
must_check int lead_store(struct lead *lead, const char *host, struct err *err);
bool lead_host_is_up(const struct lead *lead, const char *name);
struct lead_part *lead_add_part(struct lead *lead, const char *host, const char *uuid, const char *job,
				int32_t vpid, struct err *err);
/* Closes the channels of all parts, which undo everything that is not durable. */
void lead_close_parts(struct lead *lead);
/* The part of that job on that host, or NULL. */
struct lead_part *lead_find_part(const struct lead *lead, const char *host, const char *uuid);
/* The same to all parts at the same time; the answers are in part->reply. */
must_check int lead_tell_all(struct lead *lead, int operation, struct err *err);

/* ---- lead_save.c, lead_copy.c ---- */
must_check int lead_save(struct lead *lead, const Pbeam__CheckpointRequest *request, struct err *err);
/* The images of all parts to a second host each, and the cut's manifest. Afterwards it counts. */
must_check int lead_copy(struct lead *lead, char path[PATH_MAX], struct err *err);
/* Nothing of it is kept anywhere. */
void lead_drop(struct lead *lead);

/* ---- lead_rollback.c ---- */
must_check int lead_rollback(struct lead *lead, const Pbeam__RollbackRequest *request, struct err *err);

#endif
