/*
 * Swapping TCP connections: one end of a connection moves to another host, the other end stays where it is,
 * and no program on either side sees more than a pause.
 *
 *   source coordinator                 `scip reconnect` on the peer's host          target coordinator
 *   ----------------------------------------------------------------------------------------------
 *   claim:  HOLD ------------------->  finds the socket by its addresses,
 *                                      freezes every process that holds it
 *           DRAIN <---------------->   until both receivers have all
 *           LISTEN ----------------->  a port, a cookie for each connection
 *   dump:   what was not read, port and cookie go into the manifest --------->  make: a new socket
 *           ACCEPT ----------------->  accepts, by cookie  <-----------------   finish: connects
 *                                      both tell each other what their program had not read,
 *                                      both send that again: the queues are as they were
 *   held:   waits for ACCEPT's answer
 *   commit: COMMIT ----------------->  the new sockets take the place of the old
 *                                      ones under every number in every holder;
 *                                      the holders go on
 *
 * Draining takes nothing out of the kernel: it makes the receiver's buffer large enough, until the sender has
 * nothing on its way (SIOCOUTQ is 0), then looks at the queue (MSG_PEEK). So until the commit the old
 * connection is whole: whoever dies or gives up, its frozen processes are thawed by the end of the control
 * connection and nothing is lost. When the channel ends before COMMIT has come, `scip reconnect` asks the
 * registry how the migration ended.
 *
 * Conflicts: a scip is frozen by one coordinator at a time, everybody else is answered -EBUSY, lets go of all
 * that it has, waits a random time (reconnect_backoff()) and tries again; so two ends that move at the same
 * time do not wait for each other.
 */
#ifndef SCIP_RECONNECT_H
#define SCIP_RECONNECT_H

#include "namespace/names.h"
#include "proto/control.pb-c.h"
#include "proto/reconnect.pb-c.h"
#include "scip/tracee/process.h"

/* ---- `scip reconnect` ---- */
/* Serves one channel (proto/reconnect.proto) until it ends; takes `channel`. The exit status. */
int reconnect_serve(struct names *names, int channel);

/* `scip reconnect`, which pbeamd starts with the channel as descriptor 3. The exit status. */
int reconnect_main(void);

/* ---- who speaks to it ---- */
/* One request, one answer, which the caller frees. NULL: err says why; err->code is what the other side said.
 */
Pbeam__ReconnectReply *reconnect_ask(int channel, const Pbeam__ReconnectRequest *request, struct err *err);
/* The two halves of that, for asking several at the same time. */
must_check int reconnect_send(int channel, const Pbeam__ReconnectRequest *request, struct err *err);
Pbeam__ReconnectReply *reconnect_receive(int channel, struct err *err);
/* A `scip reconnect` on this host, as a child of ours. The channel, or -errno. */
must_check int reconnect_fork(struct names *names, struct err *err);
/* Waits before another try: a random time, longer with every try. */
void reconnect_backoff(unsigned attempt);

#endif
