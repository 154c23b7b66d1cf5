/* Between the parts of the side that is left: a description that is about to be left. */
#ifndef SCIP_BRIDGE_SOURCE_H
#define SCIP_BRIDGE_SOURCE_H

#include "scip/bridge/bridge.h"
#include "scip/bridge/bridge_holders.h"
#include "scip/ends/external.h"

/* A pipe that has its line: other descriptions of the same end need none. */
struct known_pipe {
	uint64_t ino;
	bool reader;
};
/* Likewise a terminal; others say which it is. */
struct known_terminal {
	uint64_t ino, id;
	uint8_t cookie[BRIDGE_COOKIE];
	char host[64];
};
struct leaving {
	struct bridge *anchor;
	struct bridge_hold *hold;
	struct holders holders;
	struct known_pipe *pipes;
	size_t npipes;
	struct known_terminal *terminals;
	size_t nterminals;
};

/* One description that is about to be left. */
struct left {
	struct migrate_source *source;
	struct leaving *leaving;
	struct object_dump *dump;
	const struct object_source *of;
	Pbeam__Object *out;
};

/* The name of a program, "?" when it is gone. */
const char *bridge_comm_of(pid_t pid, char comm[32]);
/* A float of it is here: its other end is on another host already. */
bool bridge_has_line(const struct left *left);
/* The line as the float is to have it: `mirror` is for one that is the anchor's, what that reads the float
 * writes. */
must_check int bridge_mark(Pbeam__Object *out, const Pbeam__BridgeLine *line, bool mirror, struct err *err);
/* A new line from here. `skip` goes along. 1 or -errno. */
must_check int bridge_leave(const struct left *left, Pbeam__BridgeLine *line, uint64_t skip, struct err *err);

/* ---- shared.c: what would be in two places ---- */
/* -ENOTSUP: `what`, which `holder` has too, and stays. */
must_check int bridge_refuse_shared(const struct holder *holder, const char *what, struct err *err);
/* Likewise; or 1: it is left to that one, as the user wants it: left->out is a pipe or socket whose other end
 * has been closed. */
must_check int bridge_shared(const struct left *left, const struct holder *holder, const char *what,
			     struct err *err);

/* ---- survey.c ---- */
/* As a provider's prepare. */
must_check int bridge_survey(struct migrate_source *source, void **state, struct err *err);

/* ---- terminal_source.c ---- */
/* As a provider's dump. */
must_check int bridge_leave_terminal(const struct left *left, struct err *err);

#endif
