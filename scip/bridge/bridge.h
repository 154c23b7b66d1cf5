/*
 * A bridge connects a migrated program to peers that stay: pipes, UNIX sockets, connections to the outside.
 *
 *    source host (A)                                              host of the program (B)
 *    peer ═══ old descriptor ─ bridge ══ channel SESSION ══ bridge ─ other end ═══ program's new descriptor
 *                              "anchor"    many streams      "float"
 *
 * The anchor holds a duplicate of the program's old descriptor and takes the program's place. It touches
 * nothing until the migration's commit, so that there is nothing to undo. The float holds the other end of a
 * pipe, socketpair or loopback connection, of which the program has one end.
 *
 * A bridged stream (struct bridge_stream) is two logs of numbered records, one for each direction: data, end,
 * close, reset, and the new connections of a listener. A record is acknowledged once it is in the kernel
 * queue of the other side's descriptor. Until then the log keeps it. With BRIDGE_WINDOW bytes in the log the
 * bridge stops reading, and the kernel's queues block the writer. A broken channel is therefore simply opened
 * again. If the program moves on from B to C, the float's side of each stream is a small message
 * (BridgeStream) in the manifest: undelivered records come again from the anchor, unacknowledged records are
 * in the message. Until the commit the float on B is only held.
 *
 * A bridge is one process, forked by a coordinator, in a session of its own. It listens at
 * RUNTIME/bridge/COOKIE and describes its streams in RUNTIME/bridge/COOKIE.lines, one line of text each. It
 * exits with its last stream. An anchor without a channel waits BRIDGE_PATIENCE_S seconds for its float, a
 * float without an anchor tries to connect for as long; then the streams are reset.
 *
 * Its loop is on epoll(7) itself: what is waited for changes with each record that fills or empties a log,
 * and libevent adds 0.4 us to an event where nothing changes and 2.3 us where something does
 * (bench/event_loop.c).
 */
#ifndef SCIP_BRIDGE_H
#define SCIP_BRIDGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "namespace/names.h"
#include "proto/cluster.pb-c.h"
#include "scip/object/pty_queue.h"

#define BRIDGE_WINDOW	  (256u << 10)
#define BRIDGE_PATIENCE_S 60
#define BRIDGE_COOKIE	  16
#define BRIDGE_COMM	  "scip bridge" /* the process name */

struct bridge;

/* Prepares a bridge, in the coordinator. `cookie` NULL: a new cookie. Returns NULL without memory. */
struct bridge *bridge_new(const uint8_t *cookie);
void bridge_free(struct bridge *bridge);
/* Adds a datagram that was queued at the program's UDP port `ino`; the float delivers it before the program
 * runs. */
void bridge_refill(struct bridge *bridge, uint64_t ino, const void *data, size_t len,
		   const ProtobufCBinaryData *from);
/* The table in which a float stores the names of the connections that it makes. Borrowed: it must outlive the
 * bridge. */
void bridge_set_names(struct bridge *bridge, struct names *names);
const uint8_t *bridge_cookie(const struct bridge *bridge);
size_t bridge_streams(const struct bridge *bridge);

/* Adds the anchor's side of a stream. Takes ownership of `fd`, a duplicate of the program's descriptor.
 * `skip` is the number of bytes, or messages, at the head of its queue that are dumped with the program.
 * `stream` has the rest (kind, reads, writes, text, addresses) and is copied; *id is its new id. */
must_check int bridge_add_anchor(struct bridge *bridge, const Pbeam__BridgeStream *stream, int fd,
				 uint64_t skip, uint64_t *id, struct err *err);
/* The same for a side from bridge_take_anchor(), with its log and its id. */
must_check int bridge_renew_anchor(struct bridge *bridge, const Pbeam__BridgeStream *stream, int fd,
				   struct err *err);
/* Adds the float's side of a stream. Takes ownership of `fd`, the other end of the program's pipe or socket;
 * -1 for a listener, whose address is stream->local. `ino` is the inode of the program's own end. */
must_check int bridge_add_float(struct bridge *bridge, const Pbeam__BridgeStream *stream, int fd,
				uint64_t ino, struct err *err);
/* Takes ownership of `expecting`, from channel_expect(), by which an anchor receives its channels. */
void bridge_expect(struct bridge *bridge, int expecting);

/* The typed bytes at the head of that terminal's queue that are dumped with the program. Takes them. */
void bridge_anchor_typed(struct bridge *bridge, uint64_t id, struct pty_bytes *typed);

/* Starts the process with the added streams, detached from the caller; closes the caller's descriptors.
 * Terminals pass bytes on from then on. Returns 0 or -errno. */
must_check int bridge_start(struct bridge *bridge, struct err *err);

/* ---- running bridges, for a coordinator whose program moves on ---- */

struct bridge_hold;
/* Lists the streams of all floats on this host. *hold is NULL if there are none. */
must_check int bridge_find_all(struct bridge_hold **hold, struct err *err);
/* Returns the stream whose program's end is this socket or pipe, or NULL. */
const Pbeam__BridgeStream *bridge_find(const struct bridge_hold *hold, uint64_t ino);
/* Lists the streams of all anchors on this host. Their `ino` is that of the program's old descriptor, their
 * cookie is the bridge's. */
must_check int bridge_find_anchors(struct bridge_hold **hold, struct err *err);
/* Returns the first stream with this inode, or the next after `last`; NULL at the end. */
const Pbeam__BridgeStream *bridge_next(const struct bridge_hold *hold, uint64_t ino,
				       const Pbeam__BridgeStream *last);
/* Holds an anchor's stream until bridge_release(); *out is as from bridge_take(). */
must_check int bridge_take_anchor(struct bridge_hold *hold, const Pbeam__BridgeStream *stream,
				  Pbeam__BridgeStream **out, struct err *err);
/* Holds a stream until bridge_release(). *fd is a duplicate of the bridge's end. */
must_check int bridge_stop(struct bridge_hold *hold, uint64_t ino, int *fd, struct err *err);
/* Returns the state of a held stream, including everything the program has written. The caller frees *out
 * with message_free(). */
must_check int bridge_take(struct bridge_hold *hold, uint64_t ino, Pbeam__BridgeStream **out,
			   struct err *err);
/* Ends the hold and frees it. `moved`: the taken streams have moved on; otherwise they continue here. */
void bridge_release(struct bridge_hold *hold, bool moved);

/* ---- terminals ---- */

/* Stands for the inode of terminal /dev/pts/`number` where pipes and sockets are found by inode. */
static inline uint64_t bridge_terminal_ino(int number)
{
	return 1ull << 63 | (uint32_t)number;
}
/* Waits until the output of process `vpid`, which has ended, has reached the terminals of other hosts.
 * -ETIMEDOUT after some seconds. */
must_check int bridge_flush(struct vpid vpid, struct err *err);
/* Takes a terminal back from the anchor on this host, for a program that returns. Waits until everything that
 * the program wrote elsewhere is written to the terminal. *fd is the terminal; *control is kept for
 * bridge_resume(), or closed to give the terminal back to the anchor. -ENOENT: the terminal is hung up;
 * -ETIMEDOUT. */
must_check int bridge_return(const Pbeam__BridgeStream *stream, int *control, int *fd, struct err *err);
/* Completes bridge_return(). out->unacked is input that had not reached the program on the other host. */
must_check int bridge_resume(int control, Pbeam__BridgeStream **out, struct err *err);

#endif
