/*
 * Requests of a restore's coordinator to the keeper that forked it, over rebuild_options.keeper_socket: a
 * SOCK_SEQPACKET pair, one fixed-size request, one fixed-size reply, strictly in turn.
 *
 * Only the keeper can make a process whose real parent is the keeper: the job's root, and orphans that the
 * keeper adopts as the job's subreaper. Husks fork everything else (SCIP_RESTORE_FORK).
 *
 * A husk is a fork of the keeper that has loaded the restored filter (with no_new_privs) and is handed to a
 * spare scip like any other launch or fork, with HANDOFF_HELD | HANDOFF_DIVERGED. It is in the keeper's
 * session and group; its session, group and descriptors are up to the coordinator. Once it is held its own
 * code never runs again and its memory is not used. All its signals are blocked.
 */
#ifndef SCIP_REBUILD_KEEPER_PROTOCOL_H
#define SCIP_REBUILD_KEEPER_PROTOCOL_H

#include <stdint.h>

enum keeper_request_type {
	/* Fork a husk. `vpid` is bound to its real number (names_number_bind) and entered in the table with
	 * its scip, state NAME_STATE_FROZEN, diverged, before the reply comes. vpid 0: a nameless helper, it
	 * gets whatever number names_number_born() gives. With KEEPER_HUSK_ROOT it is the job's (new) root:
	 * its exit is the job's end and its status the console's; others are reaped silently. */
	KEEPER_HUSK = 1,
	/* The processes of the job are about to be killed to be replaced (a rollback): until this coordinator
	 * has exited the end of the old root is not the job's end. After that, a job without a root is over.
	 */
	KEEPER_REPLACE = 2,
	/* The processes have moved, to here or from here: if the coordinator is killed the registry need not
	 * be asked, and cannot be once all others have settled. */
	KEEPER_MOVED = 3,
	/* Are signals for processes elsewhere on their way? reply.rpid: how many. */
	KEEPER_UNDER_WAY = 4,
};

enum {
	KEEPER_HUSK_ROOT = 1u << 0,
	KEEPER_HUSK_FAR = 1u << 1, /* `parent` is on another host */
};

struct keeper_request {
	uint32_t type; /* enum keeper_request_type */
	uint32_t flags;
	int32_t vpid;
	int32_t exit_signal; /* of the husk: 0 or SIGCHLD (the keeper itself must not mind either) */
	int32_t parent;	     /* with KEEPER_HUSK_FAR: its number */
};

struct keeper_reply {
	int32_t code; /* 0, or -errno with `text` */
	int32_t rpid; /* of the husk */
	char text[504];
};

_Static_assert(sizeof(struct keeper_request) == 20, "keeper_request is a wire format");
_Static_assert(sizeof(struct keeper_reply) == 512, "keeper_reply is a wire format");

#endif
