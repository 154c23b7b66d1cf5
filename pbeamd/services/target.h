/* The target of a request: what the user named. */
#ifndef PBEAMD_SERVICES_TARGET_H
#define PBEAMD_SERVICES_TARGET_H

#include "pbeamd/transport/server.h"

struct target {
	bool live; /* a process of the name space has the number or name */
	struct name_process process;
	struct name_job job; /* if `live` */
	char store[64];	     /* JOB of the checkpoints (image/store.h) */
	char who[128];	     /* "vpid 7 (cat)" or what the user wrote */
};
/* Finds the target. A job that has ended is found by its checkpoints, with `live` false. -ESRCH when there is
 * neither. */
must_check int target_find(struct server *server, const Pbeam__Target *wish, struct target *out,
			   struct err *err);
/* As target_find(), for running processes only. */
must_check int target_find_live(struct server *server, const Pbeam__Target *wish, struct target *out,
				struct err *err);
/* Returns the comm of a process, "?" if it has ended. */
void target_comm(struct rpid rpid, char comm[32]);
/* This host's name. */
void target_host(struct server *server, char host[256]);

#endif
