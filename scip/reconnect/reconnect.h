/*
 * Reconnecting TCP connections: one end of a connection moves to another host, the other end stays, and the
 * programs on both sides see no more than a pause.
 *
 *   source coordinator                 `scip reconnect` on the peer's host          target coordinator
 *   ----------------------------------------------------------------------------------------------
 *   claim:  HOLD ------------------->  finds the socket by its addresses,
 *                                      freezes every process that holds it
 *           DRAIN <---------------->   until nothing is in flight
 *           LISTEN ----------------->  a port, a cookie for each connection
 *   dump:   unread data, port and cookie are in the manifest --------------->  make: a new socket
 *           ACCEPT ----------------->  accepts, by cookie  <-----------------   finish: connects
 *                                      both ends send their unread data to each other,
 *                                      which sends it back: the queues are as before
 *   held:   waits for ACCEPT's reply
 *   commit: COMMIT ----------------->  the new sockets replace the old ones in
 *                                      every descriptor of every holder;
 *                                      the holders are thawed
 *
 * Draining takes nothing out of the kernel. It enlarges the receive buffer until the sender has nothing in
 * flight (SIOCOUTQ is 0), then reads the queue with MSG_PEEK. Until the commit the old connection is
 * therefore intact. If any party dies or gives up, the end of the control connection thaws the frozen
 * processes, and nothing is lost. If the channel ends before COMMIT, `scip reconnect` reads the outcome from
 * the registry.
 *
 * Conflicts: one coordinator at a time freezes a scip. Any other coordinator gets -EBUSY, releases everything
 * it holds, waits a random time (reconnect_backoff()) and tries again. Two ends that move at the same time
 * therefore do not wait for each other.
 */
#ifndef SCIP_RECONNECT_H
#define SCIP_RECONNECT_H

#include "namespace/names.h"
#include "proto/control.pb-c.h"
#include "proto/reconnect.pb-c.h"
#include "scip/tracee/process.h"

/* ---- `scip reconnect` ---- */
/* Serves one channel (proto/reconnect.proto) until it ends. Takes ownership of `channel`. Returns the exit
 * status. */
int reconnect_serve(struct names *names, int channel);

/* Runs `scip reconnect`, which pbeamd starts with the channel as descriptor 3. Returns the exit status. */
int reconnect_main(void);

/* ---- its clients ---- */
/* Sends one request; reconnect_receive() reads the reply, which the caller frees. NULL on failure; err->code
 * is the peer's if the peer refused. */
must_check int reconnect_send(int channel, const Pbeam__ReconnectRequest *request, struct err *err);
Pbeam__ReconnectReply *reconnect_receive(int channel, struct err *err);
/* Forks a `scip reconnect` for this host. Returns the channel to it, or -errno. */
must_check int reconnect_fork(struct names *names, struct err *err);
/* Sleeps before another attempt: a random time that grows with the number of attempts. */
void reconnect_backoff(unsigned attempt);

#endif
