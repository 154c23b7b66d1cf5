/* What a user names. */
#ifndef PBEAMD_SERVICES_TARGET_H
#define PBEAMD_SERVICES_TARGET_H

#include "pbeamd/transport/server.h"

struct target {
	bool live; /* a process of the name space has it */
	struct name_process process;
	struct name_job job; /* of a live one */
	char store[64];	     /* JOB of its checkpoints (image/store.h) */
	char who[128];	     /* "vpid 7 (cat)" or what the user wrote */
};
/* Finds what the user named. A job that has ended is found by its checkpoints: `live` is false then. -ESRCH
 * when there is neither. */
must_check int target_find(struct server *server, const Pbeam__Target *wish, struct target *out,
			   struct err *err);
/* As target_find(), but only what is running. */
must_check int target_find_live(struct server *server, const Pbeam__Target *wish, struct target *out,
				struct err *err);
/* What a process is called: comm, "?" when it is gone. */
void target_comm(struct rpid rpid, char comm[32]);
/* What this host is called. */
void target_host(struct server *server, char host[256]);

#endif
