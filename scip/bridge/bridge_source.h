/* What the files of the source side share: descriptions that get a bridge. */
#ifndef SCIP_BRIDGE_SOURCE_H
#define SCIP_BRIDGE_SOURCE_H

#include "scip/bridge/bridge.h"
#include "scip/bridge/bridge_holders.h"
#include "scip/ends/external.h"

/* A pipe that has its stream: other descriptions of the same end need none. */
struct known_pipe {
	uint64_t ino;
	bool reader;
};
/* The same for a terminal; its other descriptions refer to it. */
struct known_terminal {
	uint64_t ino, id;
	uint8_t cookie[BRIDGE_COOKIE];
	char host[64];
};
/* The ends of a migration that leave their peers behind. */
struct outgoing {
	struct bridge *anchor;
	struct bridge_hold *hold;
	struct holders holders;
	struct known_pipe *pipes;
	size_t npipes;
	struct known_terminal *terminals;
	size_t nterminals;
};

/* One description, while it is dumped. */
struct outgoing_end {
	struct migrate_source *source;
	struct outgoing *outgoing;
	struct object_dump *dump;
	const struct object_source *of;
	Pbeam__Object *out;
};

/* Returns the name of a process, "?" if it has ended. */
const char *bridge_comm_of(pid_t pid, char comm[32]);
/* True if a float has it: its other end is already on another host. */
bool bridge_has_stream(const struct outgoing_end *end);
/* Marks `out` with the float's side of the stream. `mirror`: `stream` is the anchor's side, so reads and
 * writes are swapped. */
must_check int bridge_mark(Pbeam__Object *out, const Pbeam__BridgeStream *stream, bool mirror,
			   struct err *err);
/* Starts a new stream here. `skip` bytes or messages are dumped with the program. Returns 1 or -errno. */
must_check int bridge_leave(const struct outgoing_end *end, Pbeam__BridgeStream *stream, uint64_t skip,
			    struct err *err);

/* ---- bridge_shared.c: descriptions shared with a process that stays ---- */
/* Fails with -ENOTSUP, as `holder`, which stays, has `what` open too. */
must_check int bridge_refuse_shared(const struct holder *holder, const char *what, struct err *err);
/* The same, unless the user gave --leave-shared: then the description is left to `holder`, end->out is a
 * pipe or socket whose other end is closed, and 1 is returned. */
must_check int bridge_shared(const struct outgoing_end *end, const struct holder *holder, const char *what,
			     struct err *err);

/* ---- bridge_survey.c ---- */
/* Implements a provider's prepare. */
must_check int bridge_survey(struct migrate_source *source, void **state, struct err *err);

/* ---- bridge_terminal_source.c ---- */
/* Implements a provider's dump. */
must_check int bridge_leave_terminal(const struct outgoing_end *end, struct err *err);

#endif
