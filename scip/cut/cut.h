/*
 * A consistent cut over several hosts: a coordinated checkpoint of processes in several parts, and the way
 * back.
 *
 * A part is what one keeper has of it on its host: a job of a named group, or the processes of a tree that
 * are there. `scip cut`, which pbeamd starts on the host where the command was given, leads; the coordinator
 * of each part (part_save.c) follows over a channel of kind CUT:
 *
 *   leader (lead_save.c)                         each part's coordinator
 *   ---------------------------------------------------------------------------------------------
 *   SAVE      nothing is frozen yet              the image's file is open
 *   FREEZE    phase 1 begins                     all its processes are frozen
 *   DUMP      every part is frozen: the cut      memory; which connections leave the part
 *   DRAIN     pairs their ends by the addresses  what was under way is in the receivers' queues
 *   OBJECTS                                      queues and all other objects
 *   THAW      every part has all of it           thawed; the image whole and durable
 *             the images go to a second host     (part_store.c)
 *             the cut's manifest, last of all:
 *             with that it counts
 *
 * No part is thawed before every part is dumped. So bytes that a part sent before its freeze are in another's
 * queue, and no part has bytes that another has not sent. Undo: a part whose channel ends
 * thaws; a leader that loses a part lets go of all. A cut without its manifest does not exist and what is
 * left of it is swept.
 */
#ifndef SCIP_CUT_CUT_H
#define SCIP_CUT_CUT_H

#include "namespace/names.h"
#include "proto/cut.pb-c.h"

struct job;

/* ---- link.c ---- */
/* Sends one request and returns its reply, which the caller frees with message_free(). NULL: err has the
 * reason, with the other side's error code. The two halves serve callers that send several requests at once.
 */
Pbeam__CutReply *cut_ask(int channel, const Pbeam__CutRequest *request, struct err *err);
must_check int cut_send(int channel, const Pbeam__CutRequest *request, struct err *err);
Pbeam__CutReply *cut_receive(int channel, struct err *err);
/* The other side: the next request, to be freed; NULL with err->code -EPIPE when the channel has ended. */
Pbeam__CutRequest *cut_take(int channel, struct err *err);
/* 0 if it may be the name of checkpoints. */
must_check int cut_check_name(const char *name, struct err *err);

/* ---- part_store.c: `scip part` ---- */
/* Serves a request about images. Returns 1 if it was served or refused, 0 if it is another request, -errno if
 * the channel cannot be used any more. */
must_check int cut_serve_store(int channel, const Pbeam__CutRequest *request, struct err *err);
/* The other side of GET and PUT: between a file here and one on the other side. `part` becomes part `as`,
 * which is the same or STORE_COPY. */
must_check int cut_get_image(int channel, const char *name, uint32_t number, uint32_t part, uint32_t as,
			     struct err *err);
must_check int cut_put_image(int channel, const char *name, const char *uuid, uint32_t number, uint32_t part,
			     uint32_t as, struct err *err);

/* ---- part_save.c ---- */
struct cut_part {
	int channel;
	const Pbeam__CutRequest *save;
	const struct name_job *job;
	uint64_t save_files_max;
	const int *console; /* 3 descriptors */
	/* The host where a process of the part has its stub, "" for none. */
	const char *(*stub_host)(void *arg, struct vpid vpid);
	/* Signals for processes elsewhere are on their way from our stubs. */
	bool (*under_way)(void *arg);
	void *arg;
};
/* In a coordinator. Returns 0 when the image is complete and durable. After -errno there is no image, and the
 * processes go on. */
must_check int cut_part_save(struct names *names, const struct cut_part *part, struct err *err);

/* ---- lead.c: `scip cut`, started by pbeamd with the user's connection as descriptor 3 and the request in a
 * file as descriptor 4 ---- */
int cut_lead_main(const char *what);

#endif
