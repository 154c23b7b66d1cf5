/*
 * Bridges: what ties a program that has moved to something that stays: pipes, UNIX sockets, connections with
 * the outside.
 *
 *    host that was left (A)                                       host where the program is (B)
 *    peer ═══ old descriptor ─ bridge ══ channel SESSION ══ bridge ─ other end ═══ program's new descriptor
 *                              "anchor"   many lines in it   "float"
 *
 * The anchor holds a duplicate of the program's own old descriptor and stands in for the program: until the
 * commit of the migration it touches nothing, so that there is nothing to undo. The float holds the other end
 * of a pipe, socketpair or loopback connection whose one end the program has.
 *
 * A line is two logs of numbered records (data, end, close, reset; a listener's new connections), one in each
 * direction. A record is acknowledged once it is in the kernel queue of the other side's descriptor and kept
 * until then, BRIDGE_WINDOW bytes at most: then nothing more is read, and the kernel's own queues hold the
 * writer. So a broken channel is simply made again, and when the program moves on from B to C the float's
 * side of each line is a small message (BridgeLine) in the manifest: what was not delivered comes again from
 * the anchor, what was not acknowledged goes along. Until the commit the float on B only stands still.
 *
 * A bridge is one process, forked by a coordinator, in a session of its own. It listens at
 * RUNTIME/bridge/COOKIE, and what it does stands in RUNTIME/bridge/COOKIE.lines, one line of text each. It
 * ends with its last line. An anchor whose channel is gone waits BRIDGE_PATIENCE_S for a float to come back;
 * a float without its anchor tries as long; then the lines are reset.
 */
#ifndef SCIP_BRIDGE_H
#define SCIP_BRIDGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "namespace/names.h"
#include "proto/cluster.pb-c.h"

#define BRIDGE_WINDOW	  (256u << 10)
#define BRIDGE_PATIENCE_S 60
#define BRIDGE_COOKIE	  16
#define BRIDGE_COMM	  "scip bridge" /* what its process is called */

struct bridge;

/* A bridge in the making, in the coordinator. `cookie` NULL: a new one. NULL without memory. */
struct bridge *bridge_new(const uint8_t *cookie);
void bridge_free(struct bridge *bridge);
/* A datagram that waited at a UDP port's float's program (inode) goes into its queue before it runs. */
void bridge_refill(struct bridge *bridge, uint64_t ino, const void *data, size_t len,
		   const ProtobufCBinaryData *from);
/* Where a float says what connections that it makes are called. Must live as long as the bridge. */
void bridge_set_names(struct bridge *bridge, struct names *names);
const uint8_t *bridge_cookie(const struct bridge *bridge);
size_t bridge_lines(const struct bridge *bridge);

/* An anchor's line: `fd` (taken) is a duplicate of the program's descriptor. `skip`: bytes, or messages, at
 * the head of its queue that go with the program. `line` says the rest (kind, reads, writes, text, addresses)
 * and is copied; its id is filled in: *id. -errno. */
must_check int bridge_add_anchor(struct bridge *bridge, const Pbeam__BridgeLine *line, int fd, uint64_t skip,
				 uint64_t *id, struct err *err);
/* The same for a line as bridge_take_anchor() gave it, with its log and its id. */
must_check int bridge_renew_anchor(struct bridge *bridge, const Pbeam__BridgeLine *line, int fd,
				   struct err *err);
/* A float's line: `fd` (taken) is the other end of what the program has; of a listener -1, and line->local is
 * where the program listens now. `ino`: the program's own socket or pipe. */
must_check int bridge_add_float(struct bridge *bridge, const Pbeam__BridgeLine *line, int fd, uint64_t ino,
				struct err *err);
/* The channels that will come to an anchor, from channel_expect(); taken. */
void bridge_expect(struct bridge *bridge, int expecting);

/* Starts the process, which is nobody's child, with all that was added; the caller's descriptors are closed.
 * 0 or -errno. */
must_check int bridge_start(struct bridge *bridge, struct err *err);
/* The process itself: runs until its last line has ended. */
int bridge_run(struct bridge *bridge);

/* ---- bridges that run already, for a coordinator whose program moves on ---- */

struct bridge_hold;
/* The lines of all floats on this host; none: *hold is NULL. */
must_check int bridge_find_all(struct bridge_hold **hold, struct err *err);
/* The line whose program's end is this socket or pipe, or NULL. */
const Pbeam__BridgeLine *bridge_find(const struct bridge_hold *hold, uint64_t ino);
/* Likewise of all anchors; their `ino` is that of the descriptor that the program left, their cookie the
 * bridge's. */
must_check int bridge_find_anchors(struct bridge_hold **hold, struct err *err);
/* The first of these lines, or the one after `last`, with this inode; NULL at the end. */
const Pbeam__BridgeLine *bridge_next(const struct bridge_hold *hold, uint64_t ino,
				     const Pbeam__BridgeLine *last);
/* An anchor's line stands still from here until bridge_release(); *out is as of bridge_take(). */
must_check int bridge_take_anchor(struct bridge_hold *hold, const Pbeam__BridgeLine *line,
				  Pbeam__BridgeLine **out, struct err *err);
/* The line stands still from here until bridge_release(). *fd: a duplicate of the bridge's end. */
must_check int bridge_stop(struct bridge_hold *hold, uint64_t ino, int *fd, struct err *err);
/* Everything about a line that stands still: what the program has written is in it. Free with message_free().
 */
must_check int bridge_take(struct bridge_hold *hold, uint64_t ino, Pbeam__BridgeLine **out, struct err *err);
/* `moved`: the lines that were taken have moved on; else they go on here. Frees. */
void bridge_release(struct bridge_hold *hold, bool moved);

/* ---- terminals ---- */

/* How a terminal /dev/pts/N is called where a pipe or a socket is by its inode. */
static inline uint64_t bridge_terminal_ino(int number)
{
	return 1ull << 63 | (uint32_t)number;
}
/* Waits until what process `vpid`, which has ended, wrote to terminals of other hosts is there, some seconds
 * at most: -ETIMEDOUT. */
must_check int bridge_flush(struct vpid vpid, struct err *err);
/* The terminal whose anchor is on this host is to be the program's own again. When all that the program wrote
 * elsewhere is written to it: *fd, a descriptor of it, and *control, which is held until bridge_resume(), or
 * closed if it comes to nothing. -ENOENT: it has no other side any more; -ETIMEDOUT. */
must_check int bridge_return(const Pbeam__BridgeLine *line, int *control, int *fd, struct err *err);
/* It is. *out: what was typed and has not reached the program where it was (unacked). */
must_check int bridge_resume(int control, Pbeam__BridgeLine **out, struct err *err);

#endif
